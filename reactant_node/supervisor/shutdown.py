"""The node's way down, and when each part of it is due. Pure: the time is an argument.

There is one deadline, `exit_timeout_seconds` after the signal, for everything together:

    RUNNING --begin--> DRAINING     the component is unready and finishes its calls, for DRAIN_SHARE of the time at most
                       STOPPING     every child has SIGTERM and finishes its own
                       KILLING      at KILL_SHARE, those that are left have SIGKILL
                       STOPPED      no child is left, or the deadline has come and the node goes without waiting

A phase with nothing to wait for is over at once. A second signal ends the drain and leaves `HURRY_SECONDS` to stop.
"""

from __future__ import annotations

from enum import IntEnum

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import ExitCode

DRAIN_SHARE, KILL_SHARE = 0.7, 0.9

HURRY_SECONDS = 1.0
"""An idle worker needs a tenth of it."""

DYING_SECONDS = 1.0
"""What the kernel is granted at least, after SIGKILL, to take a process's memory and devices apart."""


REPEAT_SECONDS = 0.2
"""Signals closer together than that are one: timeout(1), and shells, signal the process and then its group."""


class Phase(IntEnum):
    """Where the node is; it only moves on."""

    RUNNING = 0
    DRAINING = 1
    STOPPING = 2
    KILLING = 3
    STOPPED = 4


class Shutdown:
    """The phase and its end; owned by the supervisor's loop.

    Args:
        timeout_seconds: from `begin` to the deadline.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.phase = Phase.RUNNING
        self.exit_code = ExitCode.OK
        self._timeout_seconds = timeout_seconds
        self._repeat_until_ns = self._drain_until_ns = self._kill_ns = self._deadline_ns = 0

    def __repr__(self) -> str:
        return f"<Shutdown {self.phase.name} {self.exit_code.name}>"

    def begin(self, exit_code: ExitCode, now_ns: int) -> bool:
        """Start; False where it has begun already: the first exit code asked for is the one that counts (SUP-9)."""
        if self.phase is not Phase.RUNNING:
            return False
        self.phase, self.exit_code = Phase.DRAINING, exit_code
        self._repeat_until_ns = _after(now_ns, REPEAT_SECONDS)
        self._drain_until_ns = _after(now_ns, self._timeout_seconds * DRAIN_SHARE)
        self._kill_ns = _after(now_ns, self._timeout_seconds * KILL_SHARE)
        self._deadline_ns = max(_after(now_ns, self._timeout_seconds), _after(self._kill_ns, DYING_SECONDS))
        return True

    def hurry(self, now_ns: int) -> bool:
        """Whoever asked, asked again; False where it is too soon to be meant so."""
        if now_ns < self._repeat_until_ns:
            return False
        self._drain_until_ns = now_ns
        self._kill_ns = min(self._kill_ns, _after(now_ns, HURRY_SECONDS))
        self._deadline_ns = min(self._deadline_ns, _after(self._kill_ns, DYING_SECONDS))
        return True

    def next(self, now_ns: int, *, drained: bool, alive: bool) -> Phase | None:
        """Move on to the next phase, if it is due, and return it.

        Args:
            now_ns: the time.
            drained: the component has no call in flight.
            alive: a child has a process.
        """
        over = {
            Phase.RUNNING: False,
            Phase.DRAINING: drained or now_ns >= self._drain_until_ns,
            Phase.STOPPING: not alive or now_ns >= self._kill_ns,
            Phase.KILLING: not alive or now_ns >= self._deadline_ns,
            Phase.STOPPED: False,
        }
        if not over[self.phase]:
            return None
        self.phase = Phase(self.phase + 1)
        return self.phase

    def fail(self) -> None:
        """The end was not clean: an exit code that said so already stays."""
        self.exit_code = self.exit_code or ExitCode.FAILURE

    def remaining_seconds(self, now_ns: int) -> float:
        """Until the deadline, 0 where it has passed."""
        return max(0.0, (self._deadline_ns - now_ns) / NS_PER_SECOND)


def _after(now_ns: int, seconds: float) -> int:
    return now_ns + round(seconds * NS_PER_SECOND)
