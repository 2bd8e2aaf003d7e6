"""The parent's main thread: starts children, hears what they say, replaces the ones that die or hang, stops them all.

One loop waits on everything at once: signals (the end of a child is one), reports, output, and the next moment at
which something is due. What to do is decided by `child.py` and `shutdown.py`; `supervised.py` does it to a process.
The gateway is a component: a thread that is started, watched and restarted like a child, and told which children
serve.

Nothing here waits for a child or for whoever reads the log. While that reader is behind, output is left in the
children's pipes (`sink.py`), and the loop goes on with the rest.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reactant_node.clock import Clock
from reactant_node.config.schema import SupervisorConfig
from reactant_node.errors import ExitCode
from reactant_node.reports import Ready
from reactant_node.supervisor.child import ChildPolicy, Drain, Event, Start, State, Stop, Tick
from reactant_node.supervisor.component import STOP_SECONDS, WatchedComponent
from reactant_node.supervisor.logs import LineFormat
from reactant_node.supervisor.process import reap_orphans
from reactant_node.supervisor.shutdown import Phase, Shutdown
from reactant_node.supervisor.signals import SignalQueue, describe_threads
from reactant_node.supervisor.sink import Sink
from reactant_node.supervisor.spec import ChildSpec, Component
from reactant_node.supervisor.supervised import SupervisedChild, Surroundings

TICK_SECONDS = 0.25
"""How often time-driven things are looked at; backoffs and heartbeats are counted in seconds."""

SHUTDOWN_TICK_SECONDS = 0.02
"""Likewise on the way down, where somebody waits for the end."""

LAST_SECONDS = 0.5
"""For what is left at the deadline to be closed in order."""

INIT_PID = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChildStatistics:
    """One child in a snapshot."""

    name: str
    state: State
    restarts: int


class Supervisor:
    """Keeps children and a component alive until a signal or a fatal exit. `run` once, on the main thread.

    Args:
        children: in the order in which they are started.
        config: patience and deadlines.
        clock: monotonic.
        sink: for the children's output.
        log_format: `text` or `json`.
        runtime_dir: writable; records of deaths are kept in its `deaths` folder.
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
        self._clock = clock
        self._sink = sink
        self._selector = selectors.DefaultSelector()
        self._logs = selectors.EpollSelector()
        around = Surroundings(
            clock=clock,
            selector=self._selector,
            log_selector=self._logs,
            line_format=LineFormat(log_format),
            write=sink.write,
            runtime_dir=runtime_dir,
            workspace_root=workspace_root,
            guardian=self,
        )
        self._children = [SupervisedChild(spec, _policy(spec, config), around) for spec in children]
        self._component: WatchedComponent | None = None
        self._shutdown = Shutdown(config.exit_timeout_seconds)

    def __repr__(self) -> str:
        return f"<Supervisor {self._shutdown!r} {self._component!r} {self._children!r}>"

    def statistics(self) -> tuple[ChildStatistics, ...]:
        """A snapshot, from any thread."""
        return tuple(ChildStatistics(child.spec.name, child.state, child.restarts) for child in self._children)

    def restarts(self) -> Mapping[str, int]:
        """Restarts by child, for metrics."""
        return {child.name: child.restarts for child in self.statistics()}

    def run(self, component: Component | None = None) -> ExitCode:
        """Start everything, supervise, shut down.

        Args:
            component: started before the children, so that a port that is taken is found before anything is spawned.

        Returns:
            OK after a signal; else what made the node stop.

        Raises:
            NodeError: the component cannot start; nothing is left running.
        """
        self._component = WatchedComponent(component) if component else None
        with SignalQueue() as signals:
            self._selector.register(signals, selectors.EVENT_READ, partial(self._take_signals, signals))
            try:
                self._start()
                while self._shutdown.phase is not Phase.STOPPED:
                    self._take_events()
                    self._tick()
            finally:
                self._abandon()
        _log.info("node stopped", extra={"exit_code": int(self._shutdown.exit_code)})
        return self._shutdown.exit_code

    # --- start and end -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._component:
            self._component.start(self._clock.now_ns())
        self._each(Start())

    def _abandon(self) -> None:
        """Whatever the way out: nothing is left behind."""
        patience = max(LAST_SECONDS, min(STOP_SECONDS, self._shutdown.remaining_seconds(self._clock.now_ns())))
        for child in self._children:
            child.abandon(patience)
        if self._component:
            self._component.part.stop(patience)
        self._selector.close()
        self._logs.close()

    # --- what comes in -------------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        """Wait for a tick at most; handle what is readable, output only while its reader keeps up."""
        running = self._shutdown.phase is Phase.RUNNING
        self._listen_to_logs(not self._sink.is_crowded())
        for key, _ in self._selector.select(TICK_SECONDS if running else SHUTDOWN_TICK_SECONDS):
            # An event may end another that came with it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _listen_to_logs(self, wanted: bool) -> None:
        if wanted and self._logs.fileno() not in self._selector.get_map():
            self._selector.register(self._logs, selectors.EVENT_READ, self._read_logs)
        elif not wanted and self._logs.fileno() in self._selector.get_map():
            self._selector.unregister(self._logs)

    def _read_logs(self) -> None:
        for key, _ in self._logs.select(0):
            key.data()

    def _take_signals(self, signals: SignalQueue) -> None:
        for number in signals.take():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    self._asked_to_stop(number)
                case signal.SIGHUP:
                    _log.warning("received SIGHUP, which changes nothing: restart the node to read its files again")
                case signal.SIGQUIT:
                    _log.warning("received SIGQUIT: this is what the node is doing; SIGTERM stops it")
                    for line in describe_threads():
                        _log.warning("%s", line)
                case _:
                    pass  # SIGCHLD: the tick that follows looks for ends

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self._shut_down(ExitCode.OK):
            _log.info("received %s: draining, then stopping", number.name)
        elif self._shutdown.hurry(self._clock.now_ns()):
            _log.warning("received %s again: stopping without waiting", number.name)

    # --- what the children's fates mean ---------------------------------------------------------------------------

    def child_ready(self, name: str, ready: Ready) -> None:
        """See `supervised.Guardian`."""
        if self._component:
            self._component.part.child_ready(name, ready)

    def child_gone(self, name: str) -> None:
        """See `supervised.Guardian`."""
        if self._component:
            self._component.part.child_gone(name)

    def child_given_up(self, exit_code: ExitCode | None) -> None:
        """Stop the node where it cannot do without this child."""
        if exit_code is not None:
            self._shut_down(exit_code)
        elif all(child.state is State.FATAL for child in self._children):
            _log.error("no worker is left that can start: the node stops")
            self._shut_down(ExitCode.FAILURE)

    # --- the passing of time -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for child in self._children:
            child.look_for_end()
        if os.getpid() == INIT_PID:
            reap_orphans({child.pid for child in self._children if child.pid is not None})
        self._each(Tick())
        if self._shutdown.phase is Phase.RUNNING:
            self._watch_component()
        else:
            self._advance_shutdown()

    def _watch_component(self) -> None:
        if self._component and (reason := self._component.watch(self._clock.now_ns())):
            _log.error("%s: the node stops", reason)
            self._shut_down(ExitCode.FAILURE)

    def _shut_down(self, exit_code: ExitCode) -> bool:
        if not self._shutdown.begin(exit_code, self._clock.now_ns()):
            return False
        if self._component:
            self._component.part.begin_drain()
        self._each(Drain())
        return True

    def _advance_shutdown(self) -> None:
        while phase := self._shutdown.next(self._clock.now_ns(), drained=self._is_drained(), alive=self._is_alive()):
            match phase:
                case Phase.STOPPING:
                    self._each(Stop())
                case Phase.KILLING:
                    self._each(Stop(kill=True))
                case Phase.STOPPED if self._is_alive():
                    left = [child.spec.name for child in self._children if child.alive]
                    _log.error("%s cannot be ended, not even by SIGKILL", ", ".join(left))
                    self._shutdown.fail()
                case _:
                    pass

    def _is_drained(self) -> bool:
        return self._component is None or self._component.part.drained()

    def _is_alive(self) -> bool:
        return any(child.alive for child in self._children)

    def _each(self, event: Event) -> None:
        for child in self._children:
            child.handle(event)


def _policy(spec: ChildSpec, config: SupervisorConfig) -> ChildPolicy:
    return ChildPolicy(config.max_restarts, config.heartbeat_timeout_seconds, spec.run_limit_seconds)
