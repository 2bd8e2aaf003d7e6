"""The gateway as a component of the parent: one thread with its own event loop, and the admin port beside it.

Start order: admin port, workers known so far, public gRPC port. Stop in reverse; the admin port goes last, so that
/readyz says 503 for as long as anything of the gateway is left.

Who owns what. `GatewayThread` belongs to the supervisor's thread, which calls its methods; what it tells the loop
crosses by `call_soon_threadsafe` with frozen values. `GatewayLoop` is one life of the thread. The admin threads
read: the table (one reference), counters (under their lock), and `_targets` (replaced whole). A restart makes a new
`GatewayLoop`; the ports, the counters and the supervisor's news of its workers stay.

Whether the loop is well is seen from outside: it notes the time every `BEAT_SECONDS`, and `failure` compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from reactant_node import __version__
from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.config.schema import GatewayConfig, Role
from reactant_node.gateway.discovery import Endpoint
from reactant_node.gateway.loop import BEAT_SECONDS, GatewayLoop
from reactant_node.gateway.observe import GatewayStatistics, Recorder, exposition
from reactant_node.gateway.table import RoutingTable
from reactant_node.reports import Ready
from reactant_node.telemetry.admin import AdminServer, AdminSource, ModelRow, Status, WorkerRow
from reactant_node.telemetry.federation import Target
from reactant_node.telemetry.metrics import Rendered
from reactant_node.transport.addresses import parse_address
from reactant_node.transport.interface import Address, Transport

STALL_SECONDS = 10.0
"""Silence after which the loop counts as wedged, as long as the supervisor gives a worker."""

_LOOPBACK = "127.0.0.1"
"""Where the workers of role `all` listen."""

_log = logging.getLogger(__name__)


class GatewayThread:
    """The gateway, as `supervisor.spec.Component`. Not ready until a worker is.

    Args:
        config: the public ports, the limits, and in role `gateway` the workers' endpoints.
        make_transport: called in the gateway's thread at every start.
        clock: monotonic, the one of the deadlines.
        workers: names of the workers that the supervisor will tell of; empty in role `gateway`.
        restarts: restarts per child so far, for the metrics; called from any thread.
    """

    def __init__(
        self,
        config: GatewayConfig,
        make_transport: Callable[[], Transport],
        clock: Clock,
        *,
        workers: Sequence[str] = (),
        restarts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._config, self._make_transport, self._clock, self._restarts = config, make_transport, clock, restarts
        self._endpoints = _static_endpoints(config)
        self._workers = (*self._endpoints, *workers)
        self._targets = _static_targets(config) if config.endpoints else dict.fromkeys(workers)
        self._max_in_flight = config.max_concurrent_requests_per_worker * len(self._workers)
        self._address = Address(config.listen.grpc_host, config.listen.grpc_port)
        self._metrics_port = config.listen.metrics_port
        self._recorder = Recorder(clock)
        self._started_ns = clock.now_ns()
        self._draining = False
        self._stalled_since_ns: int | None = None
        self._run: GatewayLoop | None = None
        self._admin: AdminServer | None = None

    @property
    def name(self) -> str:
        """For log lines."""
        return "gateway"

    @property
    def grpc_port(self) -> int:
        """The public gRPC port; the one really bound, once started."""
        return self._address.port

    @property
    def metrics_port(self) -> int:
        """The public admin port; the one really bound, once started."""
        return self._metrics_port

    def start(self) -> None:
        """Bind both ports and serve. After `stop` it may be called again, and takes the same ports.

        Raises:
            AddressInUse: a port is taken.
            NodeError: the transport cannot start.
        """
        self._draining, self._stalled_since_ns = False, None
        _warn_of_useless_cap(self._config)
        source = AdminSource(self._not_ready, self._metrics, self._status)
        self._admin = AdminServer(self._config.listen.metrics_host, self._metrics_port, source)
        self._metrics_port = self._admin.start()
        run = GatewayLoop(
            self._config, self._make_transport, self._recorder, self._not_ready, max_in_flight=self._max_in_flight
        )
        try:
            self._address = run.start(self._address, tuple(self._endpoints.values()))
        except Exception:
            self._admin.stop()
            raise
        self._run = run
        metrics = Address(self._config.listen.metrics_host, self._metrics_port)
        _log.info("listening: gRPC %s, metrics %s", self._address, metrics)

    def failure(self, now_ns: int) -> str | None:
        """Why the gateway must be restarted, or None."""
        run = self._run
        if run is None:
            return None
        if not run.alive:
            return f"its thread ended: {run.error or 'no reason known'}"
        silence_seconds = (now_ns - run.turned_ns) / NS_PER_SECOND
        if silence_seconds < STALL_SECONDS:
            self._stalled_since_ns = None
            return None
        # A parent that was frozen as a whole finds its loop silent too: give it the time to turn.
        self._stalled_since_ns = self._stalled_since_ns or now_ns
        if now_ns - self._stalled_since_ns < 2 * BEAT_SECONDS * NS_PER_SECOND:
            return None
        return f"its loop has not turned for {silence_seconds:.1f} s"

    def child_ready(self, name: str, ready: Ready) -> None:
        """A worker serves on these ports: ask it what, and route to it."""
        self._endpoints[name] = Endpoint(name, Address(_LOOPBACK, ready.grpc_port))
        self._targets = {**self._targets, name: Target(name, _LOOPBACK, ready.metrics_port)}
        if not ready.metrics_port:
            self._targets = {worker: target for worker, target in self._targets.items() if worker != name}
        if self._run is not None:
            self._run.add(self._endpoints[name])

    def child_gone(self, name: str) -> None:
        """A worker died or is being stopped: route nothing to it. Its calls in flight go on, or fail by themselves."""
        if self._endpoints.pop(name, None) is not None and name in self._targets:
            self._targets = {**self._targets, name: None}
        if self._run is not None:
            self._run.remove(name)

    def begin_drain(self) -> None:
        """Turn unready, then answer new calls UNAVAILABLE; those in flight go on."""
        self._draining = True
        if self._run is not None:
            self._run.begin_drain()

    def drained(self) -> bool:
        """The drain has begun, and no call is in flight any more."""
        return self._run is None or not self._run.alive or self._run.drained

    def stop(self, timeout_seconds: float) -> bool:
        """Close both ports and end the thread; calls still in flight are answered UNAVAILABLE.

        Returns:
            False where the thread did not end in time. It is abandoned, and may go on to hold the public port.
        """
        run, self._run = self._run, None
        ended = run is None or run.stop(timeout_seconds)
        if self._admin is not None:
            self._admin.stop()
        return ended

    def __repr__(self) -> str:
        state = "stopped" if self._run is None else repr(self._run)
        return f"<GatewayThread {self._address} {self._not_ready() or 'ready'} {state}>"

    def _table(self) -> RoutingTable:
        return RoutingTable() if self._run is None else self._run.table

    def _not_ready(self) -> str | None:
        """Why the node cannot serve now, or None. Asked by /readyz, ServerReady and the health check alike."""
        run = self._run
        if self._draining:
            return "draining"
        if run is None or not run.alive:
            return "the gateway is not running"
        if self._clock.now_ns() - run.turned_ns > STALL_SECONDS * NS_PER_SECOND:
            return "the gateway's loop does not turn"
        return None if run.table.ready else "no worker is ready"

    def _metrics(self, accept: str) -> Rendered:
        targets = [target for target in self._targets.values() if target is not None]
        return exposition(accept, targets, self._statistics)

    def _statistics(self, metrics_up: Mapping[str, bool]) -> GatewayStatistics:
        return GatewayStatistics(
            calls=self._recorder.statistics(),
            worker_latencies=self._recorder.worker_latencies(),
            table=self._table(),
            workers=self._workers,
            metrics_up={worker: metrics_up.get(worker, False) for worker in self._targets},
            in_flight=0 if self._run is None else self._run.in_flight,
            max_concurrent=self._max_in_flight,
            restarts=self._restarts(),
        )

    def _status(self) -> Status:
        table = self._table()
        return Status(
            version=__version__,
            role=(Role.GATEWAY if self._config.endpoints else Role.ALL).value,
            uptime_seconds=(self._clock.now_ns() - self._started_ns) / NS_PER_SECOND,
            workers=tuple(WorkerRow(worker, _state(worker, table)) for worker in self._workers),
            models=tuple(ModelRow(row.name, row.version, row.state, row.reason) for row in table.index),
        )


def _state(worker: str, table: RoutingTable) -> str:
    if worker in table.ready_workers:
        return "ready"
    return "answers, not ready" if worker in table.workers else "does not answer"


def _warn_of_useless_cap(config: GatewayConfig) -> None:
    cap, streams = config.max_concurrent_requests_per_worker, config.max_concurrent_streams
    if 0 < cap <= streams:
        _log.warning(
            "gateway.grpc.max_concurrent_requests_per_worker: got %d; requests are refused before the %d streams to a"
            " worker are in use; raise it above gateway.worker_client.max_concurrent_streams, or 0 for no cap",
            cap,
            streams,
        )


def _static_endpoints(config: GatewayConfig) -> dict[str, Endpoint]:
    """The workers of role `gateway`, by name."""
    names = config.worker_names or config.endpoints
    pairs = zip(names, config.endpoints, strict=True)
    return {name: Endpoint(name, parse_address(endpoint)) for name, endpoint in pairs}


def _static_targets(config: GatewayConfig) -> dict[str, Target | None]:
    names = config.worker_names or config.endpoints
    addresses = [parse_address(endpoint) for endpoint in config.metrics_endpoints]
    return {name: Target(name, address.host, address.port) for name, address in zip(names, addresses, strict=False)}
