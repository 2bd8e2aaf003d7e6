"""One child in the supervisor's care: its machine, its process while there is one, and everything it says.

`child.py` decides; this performs its steps on a real process, and turns what the process does into events: what
comes on its log pipe and its report sockets, and its end. Whoever has to know of it is told through `Guardian`.
"""

from __future__ import annotations

import logging
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from reactant_node.clock import Clock
from reactant_node.errors import ExitCode
from reactant_node.reports import Failed, Loading, Ready, Report
from reactant_node.supervisor.child import (
    ALIVE,
    ChildMachine,
    ChildPolicy,
    Event,
    Exited,
    GiveUp,
    Kill,
    Reported,
    RestartLater,
    Spawn,
    State,
    Step,
    Terminate,
)
from reactant_node.supervisor.deaths import Death, oom_kills, write_record
from reactant_node.supervisor.logs import ChildLog, LineFormat
from reactant_node.supervisor.process import ChildProcess, spawn
from reactant_node.supervisor.spec import ChildSpec

LAST_READS = 16
"""Reads of the log of a child that has ended. One empties its pipe; if there is more, something it started goes on
writing there."""

_log = logging.getLogger(__name__)


class Guardian(Protocol):
    """Whom a child's fate concerns. Called from the supervisor's loop."""

    def child_ready(self, name: str, ready: Ready) -> None:
        """It serves."""
        ...

    def child_gone(self, name: str) -> None:
        """It does not serve any more."""
        ...

    def child_given_up(self, exit_code: ExitCode | None) -> None:
        """It is not restarted; see `child.GiveUp`."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all children of a node share.

    Attributes:
        clock: monotonic.
        selector: of the supervisor's loop; what is registered in it is a function to call.
        log_selector: the same for log pipes, which may have to wait while reports may not.
        line_format: how lines of output are written.
        write: takes each of them.
        runtime_dir: records of deaths are kept in its `deaths` folder.
        workspace_root: a checkout that children load from, or empty.
        guardian: told of ends and beginnings.
    """

    clock: Clock
    selector: selectors.BaseSelector
    log_selector: selectors.BaseSelector
    line_format: LineFormat
    write: Callable[[bytes], None]
    runtime_dir: Path
    workspace_root: str
    guardian: Guardian


@dataclass(slots=True)
class _Life:
    """One process of a child, from its start to its death."""

    process: ChildProcess
    log: ChildLog
    oom_kills_before: int
    killed_because: str = ""
    failed_reason: str = ""


class SupervisedChild:
    """One child. Owned by the supervisor's loop; `state` and `restarts` may be read from any thread."""

    def __init__(self, spec: ChildSpec, policy: ChildPolicy, surroundings: Surroundings) -> None:
        self.spec = spec
        self._machine = ChildMachine(policy)
        self._around = surroundings
        self._life: _Life | None = None

    def __repr__(self) -> str:
        return (
            f"<SupervisedChild {self.spec.name} {self._life.process if self._life else 'no process'} {self._machine!r}>"
        )

    @property
    def state(self) -> State:
        """Where it is."""
        return self._machine.state

    @property
    def restarts(self) -> int:
        """Since the node started."""
        return self._machine.restarts

    @property
    def alive(self) -> bool:
        """It has a process."""
        return self._machine.state in ALIVE

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return self._life.process.pid if self._life else None

    def handle(self, event: Event) -> None:
        """Let the machine decide, and do what it says."""
        for step in self._machine.handle(event, self._around.clock.now_ns()):
            self._do(step)

    def look_for_end(self) -> None:
        """Where its process has ended: hear its last words, reap it, say why, and let the machine decide."""
        life = self._life
        if life is None or (code := life.process.exit_code()) is None:
            return
        self._hear_last_words(life)
        self._close(life)
        self._report_death(life, code)
        self._around.guardian.child_gone(self.spec.name)
        self.handle(Exited(code))

    def abandon(self, timeout_seconds: float) -> None:
        """Kill it, where there is something to kill, and let go."""
        if (life := self._life) is not None:
            life.process.send(signal.SIGKILL)
            life.process.wait(timeout_seconds)
            self._close(life)

    # --- what it says --------------------------------------------------------------------------------------------

    def _read_log(self, life: _Life) -> bool:
        """Pass on some of its output; whether there may be more."""
        data = life.process.read_log()
        if data:
            life.log.feed(data, _utc_now())
        elif data is not None:  # it has closed its output, or nobody has it open any more
            _unregister(self._around.log_selector, life.process.log_fd)
        return bool(data)

    def _read_report(self, life: _Life) -> bool:
        """Take one report; whether there may be more."""
        try:
            report = life.process.read_report()
        except EOFError:
            _unregister(self._around.selector, life.process.reports.fileno())
            return False
        if report is None:
            return False
        self._note(life, report)
        self.handle(Reported(report))
        return True

    def _note(self, life: _Life, report: Report) -> None:
        name = self.spec.name
        match report:
            case Ready(grpc_port, metrics_port, not_ready):
                ports = {"grpc_port": grpc_port, "metrics_port": metrics_port}
                if not_ready:
                    _log.warning("%s listens and is not ready: %s", name, not_ready, extra=ports)
                else:
                    _log.info("%s is ready", name, extra=ports)
                if self.state is State.STARTING:
                    self._around.guardian.child_ready(name, report)
            case Failed(reason):
                life.failed_reason = reason
            case Loading(done, total):
                _log.debug("%s: loaded %d of %d models", name, done, total)
            case _:
                pass

    def _hear_last_words(self, life: _Life) -> None:
        while self._read_report(life):
            pass
        for _ in range(LAST_READS):
            if not self._read_log(life):
                break
        life.log.end(_utc_now())

    def _report_death(self, life: _Life, code: int) -> None:
        name, pid = self.spec.name, life.process.pid
        death = Death(
            name=name,
            pid=pid,
            code=code,
            uptime_seconds=self._machine.uptime_seconds(self._around.clock.now_ns()),
            killed_because=life.killed_because,
            reason=life.failed_reason,
            oom=oom_kills() > life.oom_kills_before,
        )
        fields = {"pid": pid, "uptime_seconds": f"{death.uptime_seconds:.1f}"}
        # One that was still starting has no handler for SIGTERM, and needs none.
        if self.state is State.STOPPING and code in (ExitCode.OK, -signal.SIGTERM):
            _log.info("%s stopped", name, extra=fields)
            return
        _log.error("%s died: %s", name, death.cause, extra=fields)
        write_record(self._around.runtime_dir / "deaths", death, life.log.last_lines, datetime.now(UTC))

    # --- what is done with it ------------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        name = self.spec.name
        match step:
            case Spawn():
                self._spawn()
            case Terminate():
                self._send(signal.SIGTERM)
            case Kill(reason):
                self._kill(reason)
            case RestartLater(seconds):
                _log.info("restarting %s in %g s", name, seconds)
            case GiveUp(reason, exit_code):
                _log.error("%s is given up: %s", name, reason)
                self._around.guardian.child_given_up(exit_code)

    def _spawn(self) -> None:
        name, around = self.spec.name, self._around
        oom_kills_before = oom_kills()
        try:
            process = spawn(self.spec, workspace_root=around.workspace_root)
        except OSError as error:
            _log.error("failed to spawn %s: %s", name, error)
            self.handle(Exited(ExitCode.FAILURE))
            return
        _log.info("started %s", name, extra={"pid": process.pid})
        life = _Life(process, ChildLog(name, around.line_format, around.write), oom_kills_before)
        self._life = life
        around.log_selector.register(process.log_fd, selectors.EVENT_READ, partial(self._read_log, life))
        around.selector.register(process.reports, selectors.EVENT_READ, partial(self._read_report, life))

    def _kill(self, reason: str) -> None:
        """Nothing is sent to it from now on, even if the kernel cannot end it for a while."""
        _log.error("%s is killed: %s", self.spec.name, reason)
        if self._life is not None:
            self._life.killed_because = reason
        self._around.guardian.child_gone(self.spec.name)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._life is not None:
            self._life.process.send(number)

    def _close(self, life: _Life) -> None:
        self._life = None
        _unregister(self._around.log_selector, life.process.log_fd)
        _unregister(self._around.selector, life.process.reports.fileno())
        life.process.close()


def _unregister(selector: selectors.BaseSelector, descriptor: int) -> None:
    with suppress(KeyError, ValueError):
        selector.unregister(descriptor)


def _utc_now() -> str:
    return f"{datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
