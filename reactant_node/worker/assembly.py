"""A worker, put together.

Start order, stopped in reverse:

1. the dispatch thread, and heartbeats
2. the runtime, on that thread
3. the admin port: /healthz answers, /readyz says what is being loaded
4. the models, one after the other on the dispatch thread
5. the gRPC port, and only then `Ready`

SIGTERM: unready first, then new calls are answered UNAVAILABLE, those in flight finish, and after `drain_seconds`
the rest are answered UNAVAILABLE too.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from reactant_node.clock import NS_PER_SECOND, Clock, MonotonicClock
from reactant_node.config.schema import WorkerConfig
from reactant_node.errors import ModelLoadError, RuntimeUnavailable
from reactant_node.models.repository import ModelFolder, Snapshot, scan
from reactant_node.reports import HEARTBEAT_INTERVAL_SECONDS, Heartbeat, Loading, Ready, Report
from reactant_node.runtime.interface import Runtime
from reactant_node.runtime.loading import load_model
from reactant_node.runtime.ort import OrtRuntime
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.telemetry.admin import AdminServer, AdminSource
from reactant_node.transport.grpcio import GrpcTransport
from reactant_node.transport.interface import Address, Listener, MessageLimits, Transport
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.observe import WorkerObserver
from reactant_node.worker.service import InferenceService

STOP_SECONDS = 1.0
"""For the dispatch thread to end once every call is answered; a run that goes on ends with the process."""

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
        self._catalog = Catalog()
        self._dispatcher = Dispatcher(self._clock, config.scheduler)

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
            runtime = await self._dispatcher.call(self._make_runtime)
            service = InferenceService(self._config, runtime.platform, self._catalog, self._dispatcher, self._clock)
            stack.callback(asyncio.create_task(self._beat(service)).cancel)
            metrics_port = self._start_admin(service, stack)
            if await _interrupted(stop, self._load_models(runtime)):
                return
            listener = await self._start_listener(service, metrics_port, stack)
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

    async def _start_listener(self, service: InferenceService, metrics_port: int, stack: AsyncExitStack) -> Listener:
        endpoints, grpc = self._config.endpoints, self._config.grpc
        limits = MessageLimits(grpc.max_recv_msg_bytes, grpc.max_send_msg_bytes)
        listener = self._transport.listen(Address(endpoints.host, endpoints.port), service.routes(), limits)
        address = await listener.start()
        stack.push_async_callback(listener.close)
        _log.info("listening: gRPC %s, metrics %s", address, Address(endpoints.metrics_host, metrics_port))
        self._report(Ready(grpc_port=address.port, metrics_port=metrics_port))
        return listener

    async def _drain(self, service: InferenceService, listener: Listener) -> None:
        service.turn_unready("the worker is draining")
        listener.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                await listener.wait_idle()

    async def _beat(self, service: InferenceService) -> None:
        """Heartbeats, and the end of patience with a run: its callers are told before the supervisor ends it."""
        limit_seconds = self._config.scheduler.dispatch_timeout_seconds
        while True:
            now = self._dispatcher.statistics()
            self._report(Heartbeat(now.busy_since_ns, now.loading))
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

    async def _load_models(self, runtime: Runtime) -> None:
        snapshot = scan(self._config.model_dirs, self._config.models_include)
        self._list(snapshot)
        total = len(snapshot.models)
        for done, folder in enumerate(snapshot.models, start=1):
            await self._dispatcher.call(partial(self._load, runtime, folder))
            self._report(Loading(done, total))
        self._catalog.complete()
        if reason := self._catalog.not_ready_reason():
            _log.warning("not ready: %s", reason, extra={"model_dirs": ", ".join(self._config.model_dirs)})

    def _list(self, snapshot: Snapshot) -> None:
        """Every model is known before the first is loaded, so that a request can be told to wait."""
        for sentence in (*snapshot.problems, *snapshot.warnings):
            _log.warning("%s", sentence)
        for refused in snapshot.refused:
            self._refuse(ServedModel(refused.name, "1"), refused.reason)
        for folder in snapshot.models:
            self._catalog.put(ServedModel(folder.name, folder.version))

    def _load(self, runtime: Runtime, folder: ModelFolder) -> None:
        """On the dispatch thread: a model that cannot be served never takes the others down."""
        model, started_ns = self._catalog.models[folder.name], self._clock.now_ns()
        try:
            loaded = load_model(runtime, folder)
        except ModelLoadError as error:
            self._refuse(model, error.message)
            return
        except RuntimeUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one model's oddity must not end the worker
            _log.exception("loading failed in an unforeseen way", extra={"model": model.name})
            self._refuse(model, f"{type(error).__name__}: {error}")
            return
        axis = loaded.batch_axis
        limits = BatchLimits(coalescable=axis.axis is not None, max_rows=axis.max_rows)
        self._dispatcher.add_model(folder.name, limits)
        self._catalog.put(model.moved_to(ModelState.READY, session=loaded.session, batch_axis=axis))
        seconds = (self._clock.now_ns() - started_ns) / NS_PER_SECOND
        fields = {"model": folder.name, "version": folder.version, "seconds": f"{seconds:.2f}", "batching": axis.reason}
        _log.info("model is ready", extra=fields)
        _warn(folder.name, loaded.warnings)

    def _refuse(self, model: ServedModel, reason: str) -> None:
        self._catalog.put(model.moved_to(ModelState.UNAVAILABLE, reason=reason))
        _log.error("model cannot be served: %s", reason, extra={"model": model.name})


async def _interrupted(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; True where `stop` came first: a load that has long to go is not waited for, it ends with us."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if stop.is_set():
        return True
    await tasks[0]
    return False


def _warn(model: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        _log.warning("%s", warning, extra={"model": model})
