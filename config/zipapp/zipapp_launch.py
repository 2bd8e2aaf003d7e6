"""Unpacks the one file, once per build, and runs the node from there.

shiv lays the archive out and its bootstrap could do this too; these rules are why we do it ourselves:

- **Whole or not at all.** One process unpacks, under a lock, into a `.part` folder that becomes the real one by a
  rename; the folder's name carries the hash of what is in it. A process killed while unpacking leaves a `.part`
  that the next one removes, and a power cut cannot leave empty files behind the rename.
- **Somewhere, and said.** $SHIV_ROOT if set; else ~/.shiv; else, where the home folder is missing or cannot hold code
  (not writable, full, mounted noexec), reactant-node-UID in $TMPDIR or /tmp. One line names the place and the setting
  that moves it; when none will do, one line says why for each.
- **Ours only.** Code is run only from a folder that belongs to this user or to root and that nobody else can write.
- **Nothing before us on sys.path**, so that neither PYTHONPATH nor the host's packages replace ours; they stay
  behind, where a model's own code can still find them.
- **The archive is never needed again.** `__main__` becomes reactant_node's own and the archive leaves sys.path, so
  a process spawned after the file was replaced or deleted runs the code its parent runs.

Old builds are left alone: on a shared home folder nobody here can tell whether another host runs one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import runpy
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

EX_CONFIG = 78
SITE_PACKAGES = "site-packages"

_in_use: list[int] = []
"""Descriptors whose shared lock says, for as long as this process lives, that an unpacked folder is in use."""


def launch(archive: Path, folder_name: str) -> None:
    """Runs the node's `__main__` from the unpacked archive; returns when it does.

    Args:
        archive: the file, as Python found it.
        folder_name: name of the unpacked folder, unique to its contents.
    """
    archive = archive.absolute()
    folder = find_unpacked(archive, folder_name)
    hold(folder)
    interactive = "SHIV_INTERPRETER" in os.environ
    if interactive:
        from _bootstrap.interpreter import execute_interpreter  # noqa: PLC0415 - shiv's, gone from sys.path below
    forget(archive)
    sys.path.insert(0, str(folder / SITE_PACKAGES))
    if interactive:
        execute_interpreter()
    else:
        runpy.run_module("reactant_node", run_name="__main__", alter_sys=True)


def candidate_roots() -> list[Path]:
    """Where unpacked builds may live, best first; one only when the operator chose."""
    if chosen := os.environ.get("SHIV_ROOT"):
        return [Path(chosen).absolute()]
    try:
        at_home = [Path.home() / ".shiv"]
    except RuntimeError:  # neither HOME nor an entry in the user database
        at_home = []
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - `distrust` looks at what is there
    return [root for root in (*at_home, temporary / f"reactant-node-{os.getuid()}") if root.is_absolute()]


def find_unpacked(archive: Path, folder_name: str) -> Path:
    """The unpacked folder, unpacking if need be. Ends the process, in one line, where no place will do."""
    roots = candidate_roots()
    for root in roots:
        with contextlib.suppress(OSError):  # not there, or not for this user to see
            if distrust_root(root) is None and distrust(root / folder_name) is None:
                return root / folder_name
    failures: list[str] = []
    for root in roots:
        try:
            return unpack(archive, root / folder_name, failures)
        except OSError as error:
            failures.append(f"{root}: {error.strerror}")
    return refuse(archive, f"cannot unpack ({'; '.join(failures)}); set SHIV_ROOT to a folder for it")


def unpack(archive: Path, folder: Path, failures: list[str]) -> Path:
    """Unpacks to `folder`, or finds that another process just did; returns it.

    Args:
        archive: the file.
        folder: where to.
        failures: why better places would not do, for the line that is said.

    Raises:
        OSError: this place will not do.
    """
    make_root(folder.parent)
    with exclusive(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            reason = "".join(f"{failure}; " for failure in failures)
            say(archive, f"{reason}unpacking to {folder} (once per build; SHIV_ROOT=DIR moves it)")
            extract(archive, folder)
    if (doubt := distrust(folder)) is not None:
        raise PermissionError(0, doubt)
    return folder


def make_root(root: Path) -> None:
    """Makes `root` if it is missing, and checks that code can be run from it.

    Only a root that the operator chose is made with its parents: a home folder that does not exist stays so.

    Raises:
        OSError: it cannot be made, is mounted noexec, or others could exchange what is in it.
    """
    root.mkdir(mode=0o700, parents="SHIV_ROOT" in os.environ, exist_ok=True)
    if (doubt := distrust_root(root)) is not None:
        raise PermissionError(0, doubt)
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        raise PermissionError(0, "mounted noexec")


def extract(archive: Path, folder: Path) -> None:
    """Extracts the archive's packages as `folder`, which appears complete or not at all.

    Raises:
        OSError: no space, no permission, a read-only file system.
    """
    import zipfile  # noqa: PLC0415 - only the first start needs it
    import zlib  # noqa: PLC0415 - with it

    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    umask = os.umask(0o022)
    try:
        part.mkdir(mode=0o755)
        with zipfile.ZipFile(archive) as source:
            for member in source.infolist():
                if member.filename.startswith(f"{SITE_PACKAGES}/"):
                    source.extract(member, part)
        os.sync()
        part.rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        refuse(archive, f"damaged ({error}); copy it here again")
    finally:
        os.umask(umask)
        shutil.rmtree(part, ignore_errors=True)


def distrust_root(root: Path) -> str | None:
    """Why builds in `root` must not be run; None when they may.

    Whoever owns a folder, or can write to it, can rename what is in it: a build that was looked at a moment ago is then
    another one at the next import. Where the sticky bit is set, as on /tmp, only the owner of an entry can.
    """
    found = root.stat()
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user (uid {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return "other users can write to it"
    return None


def distrust(folder: Path) -> str | None:
    """Why code in `folder` must not be run by this user; None when it may."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder.name} is not a folder"
    if found.st_uid not in (os.getuid(), 0):
        return f"{folder.name} belongs to another user (uid {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder.name} can be written by other users"
    if not os.access(folder / SITE_PACKAGES, os.R_OK | os.X_OK):
        return f"{folder.name} cannot be read by this user"
    return None


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file at `path`; the kernel releases it however the holder ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold(folder: Path) -> None:
    """Marks `folder` as in use while this process lives: systemd-tmpfiles ages nothing below a locked directory."""
    with contextlib.suppress(OSError):  # some network file systems lock no directories; nothing ages them either
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        _in_use.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def forget(archive: Path) -> None:
    """Lets nothing read the archive again: it can become another file while the node runs.

    Imports are one way to it. Tracebacks are another: they ask the loader of each module on the stack for its source.
    """
    sys.path[:] = [entry for entry in sys.path if Path(entry).absolute() != archive]
    for name in ("__main__", __name__):
        vars(sys.modules[name]).update(__loader__=None, __spec__=None)


def say(archive: Path, line: str) -> None:
    """One line for the operator, on standard error."""
    sys.stderr.write(f"{archive.name}: {line}\n")


def refuse(archive: Path, line: str) -> NoReturn:
    """Ends the process as a wrong configuration does, so that no service manager tries again and again."""
    say(archive, line)
    sys.exit(EX_CONFIG)
