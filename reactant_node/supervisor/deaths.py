"""Why a child died, in one line, and a record of it for whoever is called at night."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from reactant_node.errors import ExitCode

KEPT = 20
"""Records kept in the run-time folder, newest first: a crash loop of a night must not fill a tmpfs."""

_MEANINGS: Mapping[int, str] = {
    ExitCode.OK: "ended by itself",
    ExitCode.CONFIG: "its configuration is wrong",
    ExitCode.BOOT: "could not load its runtime",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a child.

    Attributes:
        name: the child's.
        pid: its process.
        code: exit code, or -n for signal n.
        uptime_seconds: since it was started.
        killed_because: why the supervisor killed it; empty where it did not.
        reason: what the child itself reported; empty where nothing.
        oom: a process of this cgroup was killed for memory since the child started.
    """

    name: str
    pid: int
    code: int
    uptime_seconds: float
    killed_because: str = ""
    reason: str = ""
    oom: bool = False

    @property
    def cause(self) -> str:
        """For people: `killed by SIGKILL (out of memory in its cgroup)`, `exit code 3 (could not load its runtime)`."""
        if self.code < 0:
            return f"killed by {_signal_name(-self.code)}{self._blame()}"
        meaning = self.reason or _MEANINGS.get(self.code, "")
        return f"exit code {self.code}" + (f" ({meaning})" if meaning else "")

    def _blame(self) -> str:
        if self.killed_because:
            return f" by the supervisor ({self.killed_because})"
        if self.code == -signal.SIGKILL:
            return " (out of memory in its cgroup)" if self.oom else " (by somebody, or by the kernel for memory)"
        return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes the kernel has killed for memory in this process's cgroup, v2 or v1; 0 where unknown."""
    return max((_oom_kills_in(path) for path in _event_files(root)), default=0)


def _event_files(root: Path) -> Iterator[Path]:
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield root / "sys/fs/cgroup" / group.strip("/") / "memory.events"
            yield root / "sys/fs/cgroup/memory.events"
        elif "memory" in controllers.split(","):
            yield root / "sys/fs/cgroup/memory" / group.strip("/") / "memory.oom_control"
            yield root / "sys/fs/cgroup/memory/memory.oom_control"


def _oom_kills_in(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def write_record(folder: Path, death: Death, lines: Sequence[bytes], when: datetime) -> None:
    """Keep a death with the child's last lines in `folder`, and no more than `KEPT` of them.

    A folder that cannot be written costs one line in the log and nothing else.
    """
    name = f"{when:%Y%m%dT%H%M%S.%fZ}-{death.name}.txt"
    head = f"{death.name} pid {death.pid} after {death.uptime_seconds:.1f} s: {death.cause}\n\n".encode()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _remove(sorted(folder.glob("*.txt"))[: -(KEPT - 1)])
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(head + b"\n".join(lines) + b"\n")
    except OSError as error:
        _log.warning("cannot keep a record of this death in %s: %s", folder, error.strerror)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
