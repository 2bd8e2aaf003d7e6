"""A worker, put together.

Start order, stopped in reverse:

1. the dispatch thread, the side thread, and heartbeats
2. the runtime, on the dispatch thread
3. the admin port: /healthz answers, /readyz says what is being loaded
4. the models, one after the other
5. the gRPC port, and only then `Ready`
6. the watcher, where the repository decides what is served

SIGTERM: unready first, then new calls are answered UNAVAILABLE, those in flight finish, and after `drain_seconds`
the rest are answered UNAVAILABLE too.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from reactant_node.clock import NS_PER_SECOND, Clock, MonotonicClock
from reactant_node.config.schema import WorkerConfig
from reactant_node.models.changes import Load, RepositoryFollower
from reactant_node.reports import HEARTBEAT_INTERVAL_SECONDS, Heartbeat, Loading, Ready, Report
from reactant_node.runtime.interface import Runtime
from reactant_node.runtime.ort import OrtRuntime
from reactant_node.telemetry.admin import AdminServer, AdminSource
from reactant_node.transport.grpcio import GrpcTransport
from reactant_node.transport.interface import Address, Listener, MessageLimits, Routes, Transport
from reactant_node.worker.catalog import Catalog
from reactant_node.worker.control import ModelControl
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.library import Library
from reactant_node.worker.observe import WorkerObserver
from reactant_node.worker.service import InferenceService
from reactant_node.worker.side_thread import SideThread
from reactant_node.worker.start_set import DYNAMIC, EXPLICIT, StartSet, find_start_set, included
from reactant_node.worker.watcher import RepositoryWatcher

STOP_SECONDS = 1.0
"""For a thread to end once every call is answered; a run or a compile that goes on ends with the process."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


def run_worker(report: Callable[[Report], None], config: WorkerConfig, drain_seconds: float) -> None:
    """Serve ONNX models over gRPC until SIGTERM; see `entry.main`."""
    worker = Worker(
        report, config, drain_seconds, make_runtime=partial(_ort_runtime, config), transport=GrpcTransport()
    )
    asyncio.run(_until_sigterm(worker))


def _ort_runtime(config: WorkerConfig) -> Runtime:
    runtime = config.runtime
    return OrtRuntime(
        runtime.backend,
        config.threads,
        device_ordinal=runtime.device_ordinal,
        allow_cpu_fallback=runtime.allow_cpu_fallback,
    )


async def _until_sigterm(worker: Worker) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await worker.run(stop)


class Worker:
    """Owns every part of a worker. Lives on its loop; `run` once.

    Args:
        report: tells the supervisor, from any thread.
        config: everything this worker is told.
        drain_seconds: how long calls in flight may still take once it is asked to stop.
        make_runtime: called on the dispatch thread.
        transport: where it listens.
        clock: monotonic.
    """

    def __init__(
        self,
        report: Callable[[Report], None],
        config: WorkerConfig,
        drain_seconds: float,
        *,
        make_runtime: Callable[[], Runtime],
        transport: Transport,
        clock: Clock | None = None,
    ) -> None:
        self._report = report
        self._config = config
        self._drain_seconds = drain_seconds
        self._make_runtime = make_runtime
        self._transport = transport
        self._clock = clock or MonotonicClock()
        self._catalog = Catalog(on_demand=config.model_control_mode == EXPLICIT)
        self._dispatcher = Dispatcher(self._clock, config.scheduler)
        self._side_thread = SideThread("side")

    def __repr__(self) -> str:
        return f"<Worker {self._config.name} {self._catalog!r} {self._dispatcher!r}>"

    async def run(self, stop: asyncio.Event) -> None:
        """Start, serve until `stop` is set, drain, close.

        Raises:
            RuntimeUnavailable: the device cannot be used.
            AddressInUse: a port is taken.
        """
        async with AsyncExitStack() as stack:
            self._dispatcher.start()
            stack.push_async_callback(asyncio.to_thread, self._dispatcher.stop, STOP_SECONDS)
            self._side_thread.start()
            stack.push_async_callback(asyncio.to_thread, self._side_thread.stop, STOP_SECONDS)
            runtime = await self._dispatcher.call(self._make_runtime)
            library = Library(runtime, self._catalog, self._dispatcher, self._side_thread, self._clock)
            control = ModelControl(self._config, self._catalog, library, self._side_thread)
            service = InferenceService(self._config, runtime.platform, self._catalog, self._dispatcher, self._clock)
            stack.callback(asyncio.create_task(self._beat(service, library)).cancel)
            metrics_port = self._start_admin(service, stack)
            follower = await _unless(stop, self._load_models(library, control))
            if follower is None:
                return
            listener = await self._start_listener({**service.routes(), **control.routes()}, metrics_port, stack)
            if self._config.model_control_mode == DYNAMIC:
                stack.callback(asyncio.create_task(self._watcher(follower, library).run()).cancel)
            await stop.wait()
            await self._drain(service, listener)

    def _start_admin(self, service: InferenceService, stack: AsyncExitStack) -> int:
        observer = WorkerObserver(self._config, self._catalog, self._dispatcher, service, self._clock)
        source = AdminSource(service.not_ready_reason, observer.metrics, observer.status)
        endpoints = self._config.endpoints
        admin = AdminServer(endpoints.metrics_host, endpoints.metrics_port, source, setting="endpoints.metrics_port")
        port = admin.start()
        stack.push_async_callback(asyncio.to_thread, admin.stop)
        return port

    async def _start_listener(self, routes: Routes, metrics_port: int, stack: AsyncExitStack) -> Listener:
        endpoints, grpc = self._config.endpoints, self._config.grpc
        limits = MessageLimits(grpc.max_recv_msg_bytes, grpc.max_send_msg_bytes)
        listener = self._transport.listen(Address(endpoints.host, endpoints.port), routes, limits)
        address = await listener.start()
        stack.push_async_callback(listener.close)
        _log.info("listening: gRPC %s, metrics %s", address, Address(endpoints.metrics_host, metrics_port))
        self._report(Ready(address.port, metrics_port, self._catalog.not_ready_reason() or ""))
        return listener

    async def _drain(self, service: InferenceService, listener: Listener) -> None:
        service.turn_unready("the worker is draining")
        listener.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await listener.wait_idle()

    def _watcher(self, follower: RepositoryFollower, library: Library) -> RepositoryWatcher:
        config = self._config
        return RepositoryWatcher(
            config.model_dirs, included(config), config.model_poll_seconds, follower, library, self._side_thread
        )

    async def _beat(self, service: InferenceService, library: Library) -> None:
        """Heartbeats, and the end of patience with a run: its callers are told before the supervisor ends it."""
        limit_seconds = self._config.scheduler.dispatch_timeout_seconds
        while True:
            now = self._dispatcher.statistics()
            self._report(Heartbeat(now.busy_since_ns, now.loading or library.loading))
            if limit_seconds and now.busy_since_ns is not None:
                busy_seconds = (self._clock.now_ns() - now.busy_since_ns) / NS_PER_SECOND
                if busy_seconds > limit_seconds:
                    self._give_up_run(service, limit_seconds)
            await asyncio.sleep(HEARTBEAT_INTERVAL_SECONDS)

    def _give_up_run(self, service: InferenceService, limit_seconds: float) -> None:
        reason = (
            f"a run took longer than scheduler.dispatch_timeout_seconds ({limit_seconds:g} s); the worker is replaced"
        )
        service.turn_unready(reason)
        self._dispatcher.abandon_run(reason)

    async def _load_models(self, library: Library, control: ModelControl) -> RepositoryFollower:
        """Load the start set; what it was loaded from."""
        start = await self._side_thread.call(partial(find_start_set, self._config))
        follower = RepositoryFollower(start.observation)
        _announce(library, start)
        steps = [Load(folder.name, follower.applied[folder.name]) for folder in start.snapshot.models]
        for done, step in enumerate(steps, start=1):
            follower.record_loaded(step, await library.load(step.name, step.mark))
            self._report(Loading(done, len(steps)))
        self._catalog.complete()
        control.begin_with(follower)
        if reason := self._catalog.not_ready_reason():
            _log.warning("not ready: %s", reason, extra={"model_dirs": ", ".join(self._config.model_dirs)})
        return follower


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None where `stop` came first: a load that has long to go is not waited for."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        doing.cancel()
        stopping.cancel()
    return None if stop.is_set() else await doing


def _announce(library: Library, start: StartSet) -> None:
    """Every model is known before the first is loaded, so that a request can be told to wait."""
    for sentence in (*start.snapshot.problems, *start.snapshot.warnings):
        _log.warning("%s", sentence)
    for refused in start.snapshot.refused:
        library.refuse(refused.name, refused.reason)
    for folder in start.snapshot.models:
        library.announce(folder.name, folder.version)
    for folder in start.set_aside:
        library.set_aside(folder.name, folder.version)
