"""One child's life as a state machine. Pure: events and the time go in, steps to take come out.

    STOPPED --Start--> STARTING --Ready--> RUNNING
    STARTING, RUNNING --Exited--> BACKOFF --Tick--> STARTING ...           (restarted, after 1, 2, 4 … 30 s)
    STARTING, RUNNING --Exited--> FATAL                                    (never restarted)
    RUNNING --Drain--> DRAINING --Stop--> STOPPING --Exited--> EXITED
    STARTING --Drain--> STOPPING                                           (it has nothing to finish)
    STOPPED, BACKOFF, FATAL --Drain, Stop--> EXITED

What an exit code means is `ExitCode`'s. CONFIG is fatal for the node, since a restart meets the same files. BOOT, a
runtime or library that cannot be loaded, is tried `BOOT_ATTEMPTS` times in a row and then fatal for this child:
others may do without it. Anything else, 0 included, is restarted (reference SUP-5); a run of `STABLE_SECONDS` wipes
the count (SUP-6), and more than `max_restarts` failures in a row are fatal for the node (SUP-7). From `Drain` on
nothing is restarted, whatever it ends of.

A child hangs when it is silent for `heartbeat_timeout_seconds`, or when a run has been on its device for longer than
`run_limit_seconds`. It is killed, which works on a stopped process too, and its death is then like any other. Before
it is ready, and while it loads a model, it may be silent for `LOADING_SILENCE_SECONDS`: a library may hold the
interpreter while it reads gigabytes. Nor is it blamed for a time in which nobody listened: a container that was
paused finds everybody silent when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import ExitCode
from reactant_node.reports import Failed, Heartbeat, Loading, Ready, Report

STABLE_SECONDS = 60.0
MAX_DELAY_SECONDS = 30.0
BOOT_ATTEMPTS = 3
LOADING_SILENCE_SECONDS = 300.0
"""What container platforms grant a server for its start: a cold image on a slow disk, a model over the network."""

BLIND_SECONDS = 3.0
"""Between two ticks. A supervisor that did not come to look for so long was stopped, and its children with it."""


class State(StrEnum):
    """Supervisor's words for where a child is."""

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    BACKOFF = "BACKOFF"
    DRAINING = "DRAINING"
    STOPPING = "STOPPING"
    EXITED = "EXITED"
    FATAL = "FATAL"


ALIVE = frozenset({State.STARTING, State.RUNNING, State.DRAINING, State.STOPPING})
"""States in which there is a process."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The child said something."""

    report: Report


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended, or could not be started. `code`: its exit code, -n for signal n."""

    code: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The node shuts down: calls in flight may finish, and nothing is restarted any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End. `kill`: without waiting for the child to finish."""

    kill: bool = False


Event = Start | Reported | Exited | Tick | Drain | Stop


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a process."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL. `reason` says why, for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestartLater:
    """A restart is due in `seconds`; for the log."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This child is not restarted. `exit_code`: the node stops with it; None: only if no other child is left."""

    reason: str
    exit_code: ExitCode | None


Step = Spawn | Terminate | Kill | RestartLater | GiveUp


@dataclass(frozen=True, slots=True)
class ChildPolicy:
    """How patient to be. Zero turns a limit off."""

    max_restarts: int = 0
    heartbeat_timeout_seconds: float = 10.0
    run_limit_seconds: float = 0.0


class ChildMachine:
    """The state of one child; owned by the supervisor's loop."""

    def __init__(self, policy: ChildPolicy) -> None:
        self.state = State.STOPPED
        self.restarts = 0
        """Times the child was started again, since the node started."""
        self._policy = policy
        self._failures = 0
        self._boot_failures = 0
        self._started_ns = 0
        self._heard_ns = 0
        self._looked_ns = 0
        self._heartbeat = Heartbeat()
        self._restart_ns = 0
        self._killed = False

    def __repr__(self) -> str:
        return f"<ChildMachine {self.state}, {self.restarts} restarts, {self._failures} failures in a row>"

    def handle(self, event: Event, now_ns: int) -> list[Step]:
        """The steps an event leads to.

        Raises:
            ValueError: the event has no meaning in this state; names both.
        """
        transition = self._transitions.get((self.state, type(event)))
        if transition is None:
            raise ValueError(f"{type(event).__name__} has no meaning for a child that is {self.state}")
        return transition(self, event, now_ns)

    def uptime_seconds(self, now_ns: int) -> float:
        """Since the last start."""
        return (now_ns - self._started_ns) / NS_PER_SECOND

    def _ignore(self, _: Event, __: int) -> list[Step]:
        return []

    def _start(self, _: Event, now_ns: int) -> list[Step]:
        self.state = State.STARTING
        self._started_ns = now_ns
        self._heard_ns = self._looked_ns = now_ns
        self._heartbeat = Heartbeat()
        self._killed = False
        return [Spawn()]

    def _report(self, event: Event, now_ns: int) -> list[Step]:
        assert isinstance(event, Reported)  # noqa: S101 - the table says so
        self._heard_ns = now_ns
        match event.report:
            case Heartbeat() as heartbeat:
                self._heartbeat = heartbeat
            case Loading():
                self._heartbeat = Heartbeat(loading=True)
            case Ready():
                self._heartbeat = Heartbeat()
                self._boot_failures = 0
                if self.state is State.STARTING:
                    self.state = State.RUNNING
            case Failed():
                pass  # the exit that follows is what counts
        return []

    def _watch(self, _: Event, now_ns: int) -> list[Step]:
        if _seconds(now_ns - self._looked_ns) > BLIND_SECONDS:
            self._heard_ns = now_ns
        self._looked_ns = now_ns
        reason = None if self._killed else self._hang_reason(now_ns)
        if reason is None:
            return []
        self._killed = True
        return [Kill(reason)]

    def _hang_reason(self, now_ns: int) -> str | None:
        limit, busy_since_ns = self._policy.run_limit_seconds, self._heartbeat.busy_since_ns
        if limit and busy_since_ns is not None and _seconds(now_ns - busy_since_ns) > limit:
            return f"a run has been on its device for more than {limit:g} s"
        patience = self._patience_seconds()
        if patience and _seconds(now_ns - self._heard_ns) > patience:
            return f"no heartbeat for {patience:g} s"
        return None

    def _patience_seconds(self) -> float:
        timeout = self._policy.heartbeat_timeout_seconds
        loading = self.state is State.STARTING or self._heartbeat.loading
        return max(timeout, LOADING_SILENCE_SECONDS) if timeout and loading else timeout

    def _exit(self, event: Event, now_ns: int) -> list[Step]:
        assert isinstance(event, Exited)  # noqa: S101 - the table says so
        if event.code == ExitCode.CONFIG:
            return self._give_up("its configuration is wrong, and would be after a restart", ExitCode.CONFIG)
        if self.uptime_seconds(now_ns) >= STABLE_SECONDS:
            self._failures = 0
        self._failures += 1
        self._boot_failures = self._boot_failures + 1 if event.code == ExitCode.BOOT else 0
        if self._boot_failures >= BOOT_ATTEMPTS:
            return self._give_up(f"it could not load its runtime {self._boot_failures} times in a row", None)
        budget = self._policy.max_restarts
        if budget and self._failures > budget:
            reason = f"{self._failures} failures in a row; REACTANT_SUPERVISOR_MAX_RESTARTS allows {budget}"
            return self._give_up(reason, ExitCode.FAILURE)
        return self._back_off(now_ns)

    def _back_off(self, now_ns: int) -> list[Step]:
        delay = backoff_seconds(self._failures)
        self.state = State.BACKOFF
        self._restart_ns = now_ns + round(delay * NS_PER_SECOND)
        return [RestartLater(delay)]

    def _give_up(self, reason: str, exit_code: ExitCode | None) -> list[Step]:
        self.state = State.FATAL
        return [GiveUp(reason, exit_code)]

    def _restart(self, event: Event, now_ns: int) -> list[Step]:
        if now_ns < self._restart_ns:
            return []
        self.restarts += 1
        return self._start(event, now_ns)

    def _drain(self, _: Event, __: int) -> list[Step]:
        self.state = State.DRAINING
        return []

    def _terminate(self, _: Event, __: int) -> list[Step]:
        self.state = State.STOPPING
        return [Terminate()]

    def _stop(self, event: Event, now_ns: int) -> list[Step]:
        assert isinstance(event, Stop)  # noqa: S101 - the table says so
        return self._stop_harder(event, now_ns) if event.kill else self._terminate(event, now_ns)

    def _stop_harder(self, event: Event, _: int) -> list[Step]:
        assert isinstance(event, Stop)  # noqa: S101 - the table says so
        self.state = State.STOPPING
        if not event.kill or self._killed:
            return []
        self._killed = True
        return [Kill("the time for stopping is over")]

    def _end(self, _: Event, __: int) -> list[Step]:
        self.state = State.EXITED
        return []

    _transitions: ClassVar[Mapping[tuple[State, type[Event]], Callable[[ChildMachine, Event, int], list[Step]]]] = {
        (State.STOPPED, Start): _start,
        (State.STOPPED, Tick): _ignore,
        (State.STOPPED, Drain): _end,
        (State.STOPPED, Stop): _end,
        (State.STARTING, Reported): _report,
        (State.STARTING, Exited): _exit,
        (State.STARTING, Tick): _watch,
        (State.STARTING, Drain): _terminate,
        (State.STARTING, Stop): _stop,
        (State.RUNNING, Reported): _report,
        (State.RUNNING, Exited): _exit,
        (State.RUNNING, Tick): _watch,
        (State.RUNNING, Drain): _drain,
        (State.RUNNING, Stop): _stop,
        (State.BACKOFF, Tick): _restart,
        (State.BACKOFF, Drain): _end,
        (State.BACKOFF, Stop): _end,
        (State.DRAINING, Reported): _report,
        (State.DRAINING, Exited): _end,
        (State.DRAINING, Tick): _watch,
        (State.DRAINING, Drain): _ignore,
        (State.DRAINING, Stop): _stop,
        (State.STOPPING, Reported): _ignore,
        (State.STOPPING, Exited): _end,
        (State.STOPPING, Tick): _ignore,
        (State.STOPPING, Drain): _ignore,
        (State.STOPPING, Stop): _stop_harder,
        (State.EXITED, Tick): _ignore,
        (State.EXITED, Drain): _ignore,
        (State.EXITED, Stop): _ignore,
        (State.FATAL, Tick): _ignore,
        (State.FATAL, Drain): _end,
        (State.FATAL, Stop): _end,
    }


def backoff_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row, one or more: 1, 2, 4 … 30 s."""
    return min(2.0 ** min(failures - 1, 10), MAX_DELAY_SECONDS)


def _seconds(duration_ns: int) -> float:
    return duration_ns / NS_PER_SECOND
