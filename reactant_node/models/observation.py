"""What a poll of the repository looks at: names, links and file times, never the contents of a graph.

The signature of a folder covers the files that decide what is served: manifest.yaml and config.pbtxt, and all that
lies beside or below the model file that serves, since a graph may name any file as its external data. Notes in plain
text and hidden files do not count. Of a folder that is refused, every file counts: any of them may be the remedy.

A file is its name, its modification and its status-change time, size and inode: the status-change time also tells of
a write that put the size and the modification time back as they were.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from reactant_node.models import manifest, triton
from reactant_node.models.changes import FolderMark, Identity, RootView
from reactant_node.models.repository import ModelFolder, RefusedFolder, scan_folder

_NOTES = (".md", ".rst", ".txt", ".log")
"""Suffixes of files that change nothing about what is served."""

_MAX_FILES = 10_000
"""Looked at in one folder: a tree that somebody parked there must not hold up the polls."""


def observe(roots: Sequence[str], include: Sequence[str] = ()) -> tuple[RootView, ...]:
    """Look at all roots.

    Args:
        roots: folders of model folders.
        include: names to look at; empty means all.
    """
    return tuple(_observe_root(root, include) for root in roots)


def observe_folder(root: str, name: str) -> FolderMark | None:
    """Look at one folder; None where it is gone or has nothing to do with models.

    To say which files matter the folder is read, and it may change meanwhile. What is read between two looks that
    gave equal marks is what both stand for.
    """
    folder = Path(root, name)
    try:
        identity = _identity(folder)
    except OSError:
        return None
    entry = scan_folder(folder)
    return None if entry is None else FolderMark(identity, _signature(folder, entry), root)


def glance(roots: Sequence[str]) -> Hashable:
    """Something that differs when an entry of a root, or of a folder in it, came, went or was renamed.

    Cheap enough for every second: one look at each folder, none at its files.
    """
    return tuple(_glance_root(root) for root in roots)


def _observe_root(root: str, include: Sequence[str]) -> RootView:
    try:
        identity = _identity(Path(root))
        names = [name for name in _entries(root) if not include or name in include]
    except OSError as error:
        return RootView(root, None, f"model repository {root} cannot be read: {error.strerror}")
    marks = {name: observe_folder(root, name) for name in names}
    found = {name: mark for name, mark in marks.items() if mark is not None}
    unreachable = frozenset(name for name in names if not _leads_somewhere(Path(root, name)))
    return RootView(root, identity, folders=found, unreachable=unreachable)


def _glance_root(root: str) -> Hashable:
    try:
        places = [root, *(os.path.join(root, name) for name in _entries(root))]  # noqa: PTH118 - every second
    except OSError as error:
        return error.errno
    return tuple(_glance_folder(place) for place in places)


def _glance_folder(place: str) -> Hashable:
    try:
        status = os.stat(place)  # noqa: PTH116 - every second
    except OSError as error:
        return place, error.errno
    return place, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _entries(root: str) -> list[str]:
    """Names in a root that are folders, or links that may lead to one."""
    with os.scandir(root) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir(follow_symlinks=False) or _is_folder_link(entry))
        )


def _is_folder_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and (entry.is_dir() or not _leads_somewhere(Path(entry.path)))
    except OSError:
        return True


def _leads_somewhere(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _signature(folder: Path, entry: ModelFolder | RefusedFolder) -> Hashable:
    if isinstance(entry, RefusedFolder):
        return entry.reason, tuple(_marks(folder, _files(folder)))
    declared = [folder / name for name in (manifest.FILE_NAME, triton.FILE_NAME)]
    serving = (path for path in _files(entry.path.parent) if path.suffix.lower() not in _NOTES)
    files = sorted(set(chain(declared, islice(serving, _MAX_FILES))))
    return entry.version, str(entry.path.relative_to(folder)), tuple(_marks(folder, files))


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def _marks(folder: Path, files: Iterable[Path]) -> Iterator[Hashable]:
    for path in islice(files, _MAX_FILES):
        try:
            status = path.stat()
        except OSError:
            continue  # gone, or a link that leads nowhere: there is nothing of it to be read
        name = str(path.relative_to(folder))
        yield name, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_dev, status.st_ino
