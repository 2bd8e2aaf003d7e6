"""The run-time folder: the materialized node file, and records of deaths. One running node each.

A second node in the folder would write its node file over that of the first, and `health` of the first would ask the
second's port. So a node holds a lock in its folder for as long as it lives; the kernel lets go of it however the node
ends. A folder that was asked for and is another's is an error; where nobody asked, a private temporary folder is
taken instead. All of it is private to its owner, since paths and addresses are in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reactant_node.config.documents import render_document
from reactant_node.config.materialized import materialized
from reactant_node.config.schema import NodeConfig
from reactant_node.errors import ConfigError

RUNTIME_DIR = Path("/run/reactantserver")
NODE_FILE_NAME = "node.yaml"
LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class RuntimeDir:
    """The folder of this node.

    Attributes:
        path: exists, and is this node's alone.
        note: for the log, where it is not the usual one because that is another node's; else empty.
    """

    path: Path
    note: str = ""


@contextmanager
def claim_runtime_dir(wanted: str) -> Iterator[RuntimeDir]:
    """Hold the folder to use, made with mode 0700 where it is not there.

    A temporary folder is removed in the end, unless a child's death is recorded in it.

    Args:
        wanted: by flag or REACTANT_RUNTIME_DIR; empty means /run/reactantserver, or a private temporary folder where
            that cannot be used.

    Raises:
        ConfigError: the folder that was asked for cannot be used, or is that of a running node.
    """
    path = Path(wanted) if wanted else RUNTIME_DIR
    try:
        lock = _claim(path)
    except OSError as error:
        if wanted:
            way_out = "give each node its own" if isinstance(error, _InUseError) else "name a writable folder"
            raise ConfigError(
                f"REACTANT_RUNTIME_DIR: got {wanted!r}, which cannot be used ({error.strerror}); {way_out}"
            ) from error
        with _temporary_folder() as folder:
            yield RuntimeDir(folder, _note_of(error))
        return
    try:
        yield RuntimeDir(path)
    finally:
        os.close(lock)


class _InUseError(OSError):
    """Another node holds the folder."""


def _claim(folder: Path) -> int:
    """The descriptor that holds the lock; not inherited by children."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    except BlockingIOError as error:
        holder = os.read(lock, 20).decode("ascii", "replace").strip()
        os.close(lock)
        raise _InUseError(error.errno, f"the running node with pid {holder} uses it") from error
    except OSError:
        os.close(lock)
        raise
    return lock


def _note_of(error: OSError) -> str:
    if not isinstance(error, _InUseError):
        return ""
    return (
        f"{RUNTIME_DIR}: {error.strerror}, so this node has a temporary folder; `reactant-node health` looks into the "
        "former: give each node of a host its own by REACTANT_RUNTIME_DIR"
    )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="reactant-node-"))
    try:
        yield folder
    finally:
        if {entry.name for entry in folder.iterdir()} <= {NODE_FILE_NAME}:
            shutil.rmtree(folder, ignore_errors=True)


def write_node_file(folder: Path, node: NodeConfig) -> Path:
    """Write the materialized node file whole or not at all, mode 0600.

    Raises:
        ConfigError: the folder cannot be written, or is full.
    """
    path = folder / NODE_FILE_NAME
    text = render_document(materialized(node))
    partial = ""
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{NODE_FILE_NAME}.", dir=folder)  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(partial).replace(path)
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise ConfigError(f"{path}: the node file cannot be written ({error.strerror})") from error
    return path
