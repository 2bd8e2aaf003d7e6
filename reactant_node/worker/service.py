"""The KServe methods a worker answers: decode, submit, wait, encode. Runs on the transport's loop.

This is the one place where a worker's errors become what a client sees: `NodeError` leaves a handler as it is and
carries its gRPC status. Readiness is said here too, once, so that ServerReady, the health check and /readyz can
never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from reactant_node import __version__
from reactant_node.clock import Clock
from reactant_node.config.schema import WorkerConfig
from reactant_node.errors import NodeError, NotFound, ResourceExhausted
from reactant_node.kserve import codec, metadata
from reactant_node.kserve.model_config import encode_model_config
from reactant_node.kserve.statistics import encode_statistics
from reactant_node.models.signature import BatchAxis, batch_rows, check_request
from reactant_node.telemetry.calls import CallRecorder, CallStatistics, Measurement
from reactant_node.tensors import InferReply, InferRequest
from reactant_node.transport.interface import Buffer, CallContext, Handler, Routes
from reactant_node.worker.batch import Job
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.statistics import RequestMeasurement

SERVER_NAME = "ReactantServer"
"""As the reference calls itself (RPC-2), so that tools written for the one recognise the other."""

EXTENSIONS: tuple[str, ...] = ("model_configuration", "statistics")
"""Protocol extensions served in full."""


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """A snapshot.

    Attributes:
        calls: ModelInfer calls and how they ended.
        in_flight: ModelInfer calls inside the handler now.
    """

    calls: CallStatistics
    in_flight: int


class InferenceService:
    """Answers calls. `_in_flight` and `_refusal` belong to the loop; others read them as single values."""

    def __init__(
        self, config: WorkerConfig, platform: str, catalog: Catalog, dispatcher: Dispatcher, clock: Clock
    ) -> None:
        self._config = config
        self._platform = platform
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._clock = clock
        self._recorder = dispatcher.recorder
        self._calls = CallRecorder(clock)
        self._in_flight = 0
        self._refusal: str | None = None

    def __repr__(self) -> str:
        return f"<InferenceService {self.not_ready_reason() or 'ready'}, {self._in_flight} in flight>"

    def routes(self) -> Routes:
        """Method paths and their handlers."""
        return {
            metadata.MODEL_INFER: self._model_infer,
            metadata.SERVER_LIVE: _answer(self._server_live),
            metadata.SERVER_READY: _answer(self._server_ready),
            metadata.SERVER_METADATA: _answer(self._server_metadata),
            metadata.MODEL_READY: _answer(self._model_ready),
            metadata.MODEL_METADATA: _answer(self._model_metadata),
            metadata.MODEL_CONFIG: _answer(self._model_config),
            metadata.MODEL_STATISTICS: _answer(self._model_statistics),
            metadata.REPOSITORY_INDEX: _answer(self._repository_index),
            metadata.HEALTH_CHECK: _answer(self._health),
        }

    def turn_unready(self, reason: str) -> None:
        """Not ready from now on, for this reason: draining, or about to be replaced."""
        self._refusal = self._refusal or reason

    def not_ready_reason(self) -> str | None:
        """Why this worker cannot serve now, or None. Safe from any thread."""
        return self._refusal or self._catalog.not_ready_reason()

    def statistics(self) -> ServiceStatistics:
        """A snapshot, from any thread."""
        return ServiceStatistics(self._calls.statistics(), self._in_flight)

    async def _model_infer(self, message: bytes, context: CallContext) -> Sequence[Buffer]:
        with (
            self._calls.measure("ModelInfer", context.deadline_ns) as call,
            self._admitted(),
            self._recorder.measure() as counted,
        ):
            request = codec.decode_infer(message, now_ns=self._clock.now_ns(), deadline_ns=context.deadline_ns)
            reply = await self._infer(request, call, counted)
            return codec.encode_reply(reply, limit_bytes=self._config.grpc.max_send_msg_bytes)

    async def _infer(self, request: InferRequest, call: Measurement, counted: RequestMeasurement) -> InferReply:
        model, session = self._catalog.ready_model(request.model, request.version)
        call.model = model.name
        counted.found(model.name)
        signature = session.signature
        check_request(model.name, signature, request.inputs, request.outputs, model.batch_axis)
        job = Job(
            model=model.name,
            session=session,
            inputs=request.inputs,
            outputs=request.outputs or tuple(spec.name for spec in signature.outputs),
            axis=model.batch_axis.axis if model.batch_axis else None,
            rows=batch_rows(model.batch_axis, request.inputs),
            deadline_ns=request.deadline_ns,
        )
        counted.queued()
        answer = await self._dispatcher.infer(job)
        counted.answered(job.rows, answer.queue_ns, answer.times)
        return InferReply(model.name, model.version, request.id, tuple(answer.outputs))

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """One place under the concurrency cap (WRK-5). Control and health calls need none."""
        cap = self._config.endpoints.max_concurrent_requests
        if cap and self._in_flight >= cap:
            self._calls.record_shed()
            raise ResourceExhausted(f"{cap} requests are being handled, the limit of endpoints.max_concurrent_requests")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def _server_live(self, _: bytes) -> bytes:
        return metadata.encode_live(live=True)

    def _server_ready(self, _: bytes) -> bytes:
        return metadata.encode_ready(self.not_ready_reason() is None)

    def _server_metadata(self, _: bytes) -> bytes:
        return metadata.encode_server_metadata(SERVER_NAME, __version__, EXTENSIONS)

    def _model_ready(self, message: bytes) -> bytes:
        query = metadata.decode_model_query(message)
        try:
            self._catalog.ready_model(query.model, query.version)
        except NodeError:  # unknown, or not ready: both are an answer here, as in Triton
            return metadata.encode_ready(ready=False)
        return metadata.encode_ready(ready=self._refusal is None)

    def _model_metadata(self, message: bytes) -> bytes:
        query = metadata.decode_model_query(message)
        model, session = self._catalog.ready_model(query.model, query.version)
        return metadata.encode_model_metadata(model.name, (model.version,), self._platform, session.signature)

    def _model_config(self, message: bytes) -> bytes:
        query = metadata.decode_model_query(message)
        model, session = self._catalog.ready_model(query.model, query.version)
        axis = model.batch_axis or BatchAxis(None, "")
        limits = self._dispatcher.limits(model.name)
        return encode_model_config(model.name, model.version, session.signature, axis, limits)

    def _model_statistics(self, message: bytes) -> bytes:
        query = metadata.decode_model_query(message)
        if query.model:
            models = [self._catalog.ready_model(query.model, query.version)[0]]
        else:
            models = [model for model in self._catalog.models.values() if model.state is ModelState.READY]
        return encode_statistics(self._recorder.statistics(model.name, model.version) for model in models)

    def _repository_index(self, message: bytes) -> bytes:
        ready_only = metadata.decode_index_request(message)
        return metadata.encode_index(
            [
                _index_entry(model)
                for model in self._catalog.models.values()
                if not ready_only or model.state is ModelState.READY
            ]
        )

    def _health(self, message: bytes) -> bytes:
        service = metadata.decode_health_request(message)
        if service not in ("", metadata.INFERENCE_SERVICE):
            raise NotFound(f"health: unknown service {service!r}; ask for '' or {metadata.INFERENCE_SERVICE!r}")
        return metadata.encode_health(serving=self.not_ready_reason() is None)


def _index_entry(model: ServedModel) -> metadata.IndexEntry:
    if model.state is ModelState.UNLOADED:
        return metadata.IndexEntry(model.name, model.version, ModelState.UNAVAILABLE, "unloaded")
    return metadata.IndexEntry(model.name, model.version, model.state, model.reason)


def _answer(method: Callable[[bytes], bytes]) -> Handler:
    """The handler of a method that answers at once."""

    async def handler(message: bytes, _: CallContext) -> Sequence[Buffer]:
        return (method(message),)

    return handler
