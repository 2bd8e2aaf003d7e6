"""The parent's main thread: starts children, reads what they say, replaces the ones that die or hang, stops them all.

One loop waits on everything at once: the ends of processes, their log and report pipes, signals, and the next moment
at which something is due. What to do is decided by `child.py`; here it is done. The gateway is a component: a thread
that is started, watched and restarted like a child, and told which children serve.

Shutdown has one deadline, `exit_timeout_seconds` after the signal. The component turns unready and drains, for
`DRAIN_SHARE` of the time at most; then every child gets SIGTERM at once and drains what is its own; at `KILL_SHARE`
those that are left get SIGKILL; then the component closes. A second signal shortens all that to `HURRY_SECONDS`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.config.schema import SupervisorConfig
from reactant_node.errors import ExitCode, NodeError
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
    Start,
    State,
    Step,
    Stop,
    Terminate,
    Tick,
)
from reactant_node.supervisor.deaths import Death, oom_kills, write_record
from reactant_node.supervisor.logs import LineFormat, LineSplitter
from reactant_node.supervisor.process import ChildProcess, Spawner
from reactant_node.supervisor.signals import SignalQueue
from reactant_node.supervisor.sink import Sink
from reactant_node.supervisor.spec import ChildSpec, Component

TICK_SECONDS = 0.25
"""How often time-driven things are looked at; backoffs and heartbeats are counted in seconds."""

READ_BYTES = 64 * 1024
"""Read of one child's output per turn: a child that floods fills its pipe and waits, and the others are heard."""

LAST_LINES = 50
"""Kept of each child's output for the record of its death."""

DRAIN_SHARE, KILL_SHARE = 0.7, 0.9
HURRY_SECONDS = 1.0
COMPONENT_STOP_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Phase(IntEnum):
    """Where the node is on its way; it only moves on."""

    RUNNING = 0
    DRAINING = 1
    STOPPING = 2
    KILLING = 3
    STOPPED = 4


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """One child in a snapshot."""

    name: str
    state: State
    restarts: int


class _Child:
    """One child: its machine, its process while there is one, and its output. The loop's own."""

    def __init__(self, spec: ChildSpec, policy: ChildPolicy) -> None:
        self.spec = spec
        self.machine = ChildMachine(policy)
        self.process: ChildProcess | None = None
        self.splitter = LineSplitter()
        self.last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self.killed_because = ""
        self.failed_reason = ""
        self.oom_before = 0

    def __repr__(self) -> str:
        return f"<_Child {self.spec.name} {self.machine!r}>"


class Supervisor:
    """Keeps children and a component alive until a signal or a fatal exit. `run` once, on the main thread.

    Args:
        children: in the order in which they are started.
        config: patience and deadlines.
        clock: monotonic.
        sink: for the children's output.
        log_format: `text` or `json`.
        runtime_dir: records of deaths are kept in its `deaths` folder.
        workspace_root: a checkout that children load from, or empty.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec],
        config: SupervisorConfig,
        *,
        clock: Clock,
        sink: Sink,
        log_format: str,
        runtime_dir: Path,
        workspace_root: str = "",
    ) -> None:
        self._children = [_Child(spec, _policy(spec, config)) for spec in children]
        self._component: _Watched | None = None
        self._config = config
        self._clock = clock
        self._sink = sink
        self._format = LineFormat(log_format)
        self._deaths = runtime_dir / "deaths"
        self._spawner = Spawner(workspace_root)
        self._selector = selectors.DefaultSelector()
        self._phase = Phase.RUNNING
        self._exit_code = ExitCode.OK
        self._shutdown_ns = 0
        self._deadline_ns = 0

    def __repr__(self) -> str:
        return f"<Supervisor {self._phase.name} {self._children!r}>"

    def statistics(self) -> tuple[ChildStatistics, ...]:
        """A snapshot, from any thread."""
        return tuple(
            ChildStatistics(child.spec.name, child.machine.state, child.machine.restarts) for child in self._children
        )

    def restarts(self) -> Mapping[str, int]:
        """Restarts by child, for metrics."""
        return {child.name: child.restarts for child in self.statistics()}

    def run(self, component: Component | None = None) -> ExitCode:
        """Start everything, supervise, shut down.

        Args:
            component: started after the children; None where there is none.

        Returns:
            OK after a signal; else what made the node stop.

        Raises:
            NodeError: the component cannot start (a port is taken); nothing is left running.
        """
        self._component = _Watched(component) if component else None
        with SignalQueue() as signals:
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._take_signals(signals))
            try:
                self._start()
                while self._phase is not Phase.STOPPED:
                    self._take_events()
                    self._tick(self._clock.now_ns())
            finally:
                self._abandon()
        _log.info("node stopped", extra={"exit_code": int(self._exit_code)})
        return self._exit_code

    def _take_events(self) -> None:
        """Handle what is readable; an event may end another that came with it: a process's end takes its pipes along."""
        for key, _ in self._selector.select(TICK_SECONDS):
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    # --- start and end -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for child in self._children:
            self._handle(child, Start())
        if self._component:
            self._component.start(self._clock.now_ns())

    def _abandon(self) -> None:
        """Whatever the way out: nothing is left behind."""
        self._spawner.close()
        for child in self._children:
            if child.process is not None:
                child.process.send(signal.SIGKILL)
        if self._component:
            self._component.stop(COMPONENT_STOP_SECONDS)
        self._selector.close()

    # --- what comes in -------------------------------------------------------------------------------------------

    def _take_signals(self, signals: SignalQueue) -> None:
        for number in signals.take():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    self._asked_to_stop(number)
                case signal.SIGHUP:
                    _log.warning("received SIGHUP, which changes nothing: restart the node to read its files again")
                case _:
                    self._reap_orphans()

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self._phase is Phase.RUNNING:
            _log.info("received %s: draining, then stopping", number.name)
            self._shut_down(ExitCode.OK)
        else:
            _log.warning("received %s again: stopping without waiting", number.name)
            soon_ns = self._clock.now_ns() + round(HURRY_SECONDS * NS_PER_SECOND)
            self._deadline_ns = min(self._deadline_ns, soon_ns)
            self._phase = max(self._phase, Phase.STOPPING)
            self._each(Stop())

    def _reap_orphans(self) -> None:
        """As PID 1, end the zombies of adopted processes; our own children's ends are left to their sentinels."""
        if os.getpid() != 1:
            return
        own = {child.process.pid for child in self._children if child.process is not None}
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in own:
                    return  # first in line; the rest is looked at when it has been handled
                os.waitpid(ended.si_pid, 0)

    def _read_log(self, child: _Child) -> bool:
        """Pass on some of a child's output; whether there may be more."""
        assert child.process is not None  # noqa: S101 - registered only while there is one
        try:
            data = os.read(child.process.log_fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._forget(child.process.log_fd)
        self._pass_on(child, child.splitter.feed(data) if data else child.splitter.flush())
        return bool(data)

    def _pass_on(self, child: _Child, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.{time.time_ns() // 1_000_000 % 1000:03}Z"
        child.last_lines.extend(lines)
        for line in lines:
            self._sink.write(self._format.line(child.spec.name, line, now))

    def _read_report(self, child: _Child) -> None:
        assert child.process is not None  # noqa: S101 - registered only while there is one
        try:
            report: Report = child.process.reports.recv()
        except (EOFError, OSError):
            self._forget(child.process.reports.fileno())
            return
        self._note(child, report)
        self._handle(child, Reported(report))

    def _note(self, child: _Child, report: Report) -> None:
        match report:
            case Ready():
                ports = {"grpc_port": report.grpc_port, "metrics_port": report.metrics_port}
                _log.info("%s is ready", child.spec.name, extra=ports)
                if self._component and self._phase is Phase.RUNNING:
                    self._component.part.child_ready(child.spec.name, report)
            case Failed():
                child.failed_reason = report.reason
            case Loading():
                _log.info("%s: loaded %d of %d models", child.spec.name, report.done, report.total)
            case _:
                pass

    def _ended(self, child: _Child) -> None:
        """A process has ended: hear its last words, reap it, say why, and let the machine decide."""
        process = child.process
        assert process is not None  # noqa: S101 - registered only while there is one
        code = process.exit_code()
        if code is None:
            return
        while process.reports.poll():
            fileno = process.reports.fileno()
            self._read_report(child)
            if fileno not in self._selector.get_map():
                break
        while self._read_log(child):
            pass
        self._pass_on(child, child.splitter.flush())
        for descriptor in (process.sentinel, process.log_fd, process.reports.fileno()):
            self._forget(descriptor)
        child.process = None
        self._report_death(child, process.pid, code)
        process.close()
        if self._component:
            self._component.part.child_gone(child.spec.name)
        self._handle(child, Exited(code))
        self._reap_orphans()

    def _report_death(self, child: _Child, pid: int, code: int) -> None:
        death = Death(
            name=child.spec.name,
            pid=pid,
            code=code,
            uptime_seconds=child.machine.uptime_seconds(self._clock.now_ns()),
            killed_because=child.killed_because,
            reason=child.failed_reason,
            oom=oom_kills() > child.oom_before,
        )
        asked = child.machine.state is State.STOPPING and code == ExitCode.OK
        fields = {"pid": pid, "uptime_seconds": f"{death.uptime_seconds:.1f}"}
        if asked:
            _log.info("%s stopped", child.spec.name, extra=fields)
            return
        _log.error("%s died: %s", child.spec.name, death.cause, extra=fields)
        write_record(self._deaths, death, list(child.last_lines), datetime.now(UTC))

    def _forget(self, descriptor: int) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    # --- what is decided and done --------------------------------------------------------------------------------

    def _handle(self, child: _Child, event: Event) -> None:
        for step in child.machine.handle(event, self._clock.now_ns()):
            self._do(child, step)

    def _do(self, child: _Child, step: Step) -> None:
        match step:
            case Spawn():
                self._spawn(child)
            case Terminate():
                if child.process:
                    child.process.send(signal.SIGTERM)
            case Kill(reason):
                _log.error("%s is killed: %s", child.spec.name, reason)
                child.killed_because = reason
                if child.process:
                    child.process.send(signal.SIGKILL)
            case RestartLater(seconds):
                _log.info("restarting %s in %g s", child.spec.name, seconds)
            case GiveUp(reason, exit_code):
                self._gave_up(child, reason, exit_code)

    def _spawn(self, child: _Child) -> None:
        child.killed_because = child.failed_reason = ""
        child.last_lines.clear()
        child.splitter = LineSplitter()
        child.oom_before = oom_kills()
        try:
            process = self._spawner.spawn(child.spec)
        except OSError as error:
            _log.error("failed to spawn %s: %s", child.spec.name, error)
            self._handle(child, Exited(ExitCode.FAILURE))
            return
        child.process = process
        _log.info("started %s", child.spec.name, extra={"pid": process.pid})
        register = self._selector.register
        register(process.log_fd, selectors.EVENT_READ, lambda: self._read_log(child))
        register(process.reports.fileno(), selectors.EVENT_READ, lambda: self._read_report(child))
        register(process.sentinel, selectors.EVENT_READ, lambda: self._ended(child))

    def _gave_up(self, child: _Child, reason: str, exit_code: ExitCode | None) -> None:
        _log.error("%s is given up: %s", child.spec.name, child.failed_reason or reason)
        if exit_code is None and any(other.machine.state is not State.FATAL for other in self._children):
            return
        if exit_code is None:
            _log.error("no worker is left that can start: the node stops")
        self._shut_down(exit_code or ExitCode.FAILURE)

    def _each(self, event: Event) -> None:
        for child in self._children:
            self._handle(child, event)

    # --- the passing of time -------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> None:
        if self._phase is Phase.RUNNING:
            self._each(Tick())
            if self._component and not self._component.watch(now_ns):
                self._shut_down(ExitCode.FAILURE)
        else:
            self._advance_shutdown(now_ns)

    def _shut_down(self, exit_code: ExitCode) -> None:
        """Begin the shutdown; the first exit code asked for is the one that counts (SUP-9)."""
        if self._phase is not Phase.RUNNING:
            return
        self._exit_code = exit_code
        self._phase = Phase.DRAINING
        self._shutdown_ns = self._clock.now_ns()
        self._deadline_ns = self._shutdown_ns + round(self._config.exit_timeout_seconds * NS_PER_SECOND)
        if self._component:
            self._component.part.begin_drain()

    def _advance_shutdown(self, now_ns: int) -> None:
        if self._phase is Phase.DRAINING and (self._is_drained() or now_ns >= self._share(DRAIN_SHARE)):
            self._phase = Phase.STOPPING
            self._each(Stop())
        if self._phase is Phase.STOPPING and now_ns >= self._share(KILL_SHARE):
            self._phase = Phase.KILLING
            self._each(Stop(kill=True))
        if self._phase >= Phase.STOPPING and not any(child.machine.state in ALIVE for child in self._children):
            self._phase = Phase.STOPPED

    def _is_drained(self) -> bool:
        return self._component is None or self._component.part.drained()

    def _share(self, share: float) -> int:
        return self._shutdown_ns + round((self._deadline_ns - self._shutdown_ns) * share)


def _policy(spec: ChildSpec, config: SupervisorConfig) -> ChildPolicy:
    return ChildPolicy(config.max_restarts, config.heartbeat_timeout_seconds, spec.run_limit_seconds)


class _Watched:
    """A component and the backoff of its restarts. The loop's own."""

    def __init__(self, part: Component) -> None:
        self.part = part
        self._failures = 0
        self._started_ns = 0
        self._restart_ns: int | None = None

    def start(self, now_ns: int) -> None:
        """Start it; what it raises is the caller's."""
        self.part.start()
        self._started_ns = now_ns
        self._restart_ns = None

    def stop(self, timeout_seconds: float) -> None:
        """Stop it for good."""
        self.part.stop(timeout_seconds)

    def watch(self, now_ns: int) -> bool:
        """Restart it where it failed; False where it cannot come back: its thread is stuck and holds the ports."""
        if self._restart_ns is not None:
            return now_ns < self._restart_ns or self._start_again(now_ns)
        reason = self.part.failure(now_ns)
        if reason is None:
            return True
        _log.error("%s failed: %s", self.part.name, reason)
        if not self.part.stop(COMPONENT_STOP_SECONDS):
            _log.error("%s does not end; its ports may stay taken until the node is restarted", self.part.name)
        if now_ns - self._started_ns > STABLE_NS:
            self._failures = 0
        delay = min(2.0 ** min(self._failures, 10), MAX_COMPONENT_DELAY_SECONDS)
        self._failures += 1
        self._restart_ns = now_ns + round(delay * NS_PER_SECOND)
        _log.info("restarting %s in %g s", self.part.name, delay)
        return True

    def _start_again(self, now_ns: int) -> bool:
        try:
            self.start(now_ns)
        except NodeError as error:
            _log.error("%s cannot be started again: %s", self.part.name, error)
            return False
        return True


STABLE_NS = 60 * NS_PER_SECOND
MAX_COMPONENT_DELAY_SECONDS = 30.0
