"""Workers that do what a test says, and channels straight into them: no sockets, one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from reactant_node.clock import Clock, MonotonicClock
from reactant_node.errors import ConnectionLost, NodeError, NotFound, Unavailable
from reactant_node.gateway.discovery import Discovery, Endpoint
from reactant_node.gateway.forward import Forwarder, ForwardLimits
from reactant_node.gateway.observe import Recorder
from reactant_node.gateway.replica import Replica
from reactant_node.gateway.selection import selector
from reactant_node.gateway.service import NodeService
from reactant_node.kserve import metadata
from reactant_node.kserve.metadata import IndexEntry
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.kserve.peek import peek_infer
from reactant_node.kserve.statistics import ModelStatistics, encode_statistics
from reactant_node.transport.interface import Address, Buffer, CallContext, Handler, Routes

Infer = Callable[[bytes, CallContext], Awaitable[bytes]]


def entry(name: str, state: str = "READY", reason: str = "") -> IndexEntry:
    """A row of an index."""
    return IndexEntry(name, "1", state, reason)


def infer_request(model: str, request_id: str = "") -> bytes:
    """A serialized ModelInferRequest."""
    return pb.ModelInferRequest(model_name=model, id=request_id).SerializeToString()


def index_request(*, ready: bool = False) -> bytes:
    """A serialized RepositoryIndexRequest."""
    return metadata.encode_index_request(ready_only=ready)


def model_query(model: str, version: str = "") -> bytes:
    """A serialized ModelReadyRequest or ModelMetadataRequest."""
    return metadata.encode_model_query(metadata.ModelQuery(model, version))


def raising(error: NodeError) -> Infer:
    """An inference that fails."""

    async def infer(_: bytes, __: CallContext) -> bytes:
        raise error

    return infer


@dataclass
class Call:
    """A CallContext."""

    method: str
    deadline_ns: int | None = None
    metadata: Sequence[tuple[str, str | bytes]] = ()
    peer: str = "127.0.0.1"


class ScriptedWorker:
    """Answers as a worker does.

    `ready`, `rows`, `counted` and `infer` may be changed at any time; `calls`, and `contexts` of inferences, came.
    """

    def __init__(self, name: str, *models: str) -> None:
        self.name = name
        self.ready = True
        self.rows = [entry(model) for model in models]
        self.counted = [ModelStatistics(model, "1") for model in models]
        self.infer: Infer = self._echo
        self.calls: list[str] = []
        self.contexts: list[CallContext] = []

    def count(self, method: str) -> int:
        """How often a method was called."""
        return self.calls.count(method.rpartition("/")[2])

    def routes(self) -> Routes:
        """As a worker's listener has them."""
        answers: dict[str, Infer] = {
            metadata.SERVER_READY: self._server_ready,
            metadata.SERVER_METADATA: self._server_metadata,
            metadata.MODEL_READY: self._model_ready,
            metadata.MODEL_METADATA: self._model_metadata,
            metadata.MODEL_CONFIG: self._model_config,
            metadata.MODEL_STATISTICS: self._model_statistics,
            metadata.MODEL_INFER: self._model_infer,
            metadata.REPOSITORY_INDEX: self._index,
        }
        return {method: self._noted(method, answer) for method, answer in answers.items()}

    def _noted(self, method: str, answer: Infer) -> Handler:
        async def handler(message: bytes, context: CallContext) -> Sequence[Buffer]:
            self.calls.append(method.rpartition("/")[2])
            return (await answer(message, context),)

        return handler

    async def _echo(self, message: bytes, _: CallContext) -> bytes:
        return self.name.encode() + b":" + message

    async def _server_ready(self, _: bytes, __: CallContext) -> bytes:
        return metadata.encode_ready(self.ready)

    async def _server_metadata(self, _: bytes, __: CallContext) -> bytes:
        return metadata.encode_server_metadata("the worker's", "1", [])

    async def _model_ready(self, message: bytes, _: CallContext) -> bytes:
        wanted = metadata.decode_model_query(message).model
        return metadata.encode_ready(any(row.name == wanted and row.state == "READY" for row in self.rows))

    async def _model_metadata(self, message: bytes, _: CallContext) -> bytes:
        self._find(metadata.decode_model_query(message).model)
        return b"metadata from " + self.name.encode()

    async def _model_config(self, message: bytes, _: CallContext) -> bytes:
        self._find(metadata.decode_model_query(message).model)
        return b"config from " + self.name.encode()

    async def _model_statistics(self, message: bytes, _: CallContext) -> bytes:
        wanted = metadata.decode_model_query(message).model
        if wanted:
            self._find(wanted)
        return encode_statistics([model for model in self.counted if wanted in ("", model.name)])

    async def _model_infer(self, message: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        self._find(peek_infer(message).model)
        return await self.infer(message, context)

    async def _index(self, message: bytes, _: CallContext) -> bytes:
        ready_only = metadata.decode_index_request(message)
        return metadata.encode_index([row for row in self.rows if row.state == "READY" or not ready_only])

    def _find(self, model: str) -> None:
        for row in self.rows:
            if row.name == model and row.state != "READY":
                raise NotFound(f"{model}: {row.reason}")
            if row.name == model:
                return
        raise NotFound(f"no model {model!r}, says a worker")


class ScriptedChannel:
    """A channel into a `ScriptedWorker`. `break_off` is its death, `silent` its SIGSTOP, `nonsense` its corruption."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.closed = False
        self.silent = False
        self.nonsense = False
        self._routes = worker.routes()
        self._dead = False
        self._in_flight: set[asyncio.Task[Sequence[Buffer]]] = set()

    async def call(
        self,
        method: str,
        message: Buffer,
        *,
        deadline_ns: int | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """Run the worker's handler here."""
        if self.closed or self._dead:
            raise Unavailable("connection refused")
        if self.silent:
            await asyncio.Event().wait()
        if self.nonsense:
            return b"\xff\xff\xff"
        work = self._routes[method](bytes(message), Call(method, deadline_ns, metadata))
        task = asyncio.ensure_future(work)
        self._in_flight.add(task)
        try:
            return b"".join(await task)
        except asyncio.CancelledError:
            if self._dead:
                raise ConnectionLost("connection reset") from None
            raise
        finally:
            task.cancel()
            self._in_flight.discard(task)

    def break_off(self) -> None:
        """Every call in flight is lost, and every later one UNAVAILABLE."""
        self._dead = True
        for task in self._in_flight:
            task.cancel()

    def mend(self) -> None:
        """The worker is there again."""
        self._dead = False

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


class SmallGateway:
    """A gateway's parts on the current loop, in front of scripted workers."""

    def __init__(
        self,
        *workers: ScriptedWorker,
        mode: str = "round_robin",
        streams: int = 32,
        max_in_flight: int = 0,
        timeout_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or MonotonicClock()
        self.recorder = Recorder(self.clock)
        self.channels: dict[str, ScriptedChannel] = {}
        self.not_ready: str | None = None
        self._workers = {worker.name: worker for worker in workers}
        self._streams = streams
        self.discovery = Discovery(self._dial, self.clock, interval_seconds=3600)
        limits = ForwardLimits(max_in_flight, timeout_seconds)
        self.forwarder = Forwarder(self.discovery, selector(mode), limits, self.recorder)
        self.service = NodeService(self.discovery, self.forwarder, self.recorder, lambda: self.not_ready)
        self._routes = self.service.routes("node")

    async def start(self) -> SmallGateway:
        """Add every worker and wait until each has answered."""
        for worker in self._workers.values():
            self.add(worker)
        await until(lambda: len(self.discovery.table.workers) == len(self._workers))
        return self

    def add(self, worker: ScriptedWorker) -> None:
        """A worker is there, or is there again."""
        self._workers[worker.name] = worker
        self.discovery.add(Endpoint(worker.name, Address(worker.name, 1)))

    def _dial(self, endpoint: Endpoint) -> Replica:
        channel = ScriptedChannel(self._workers[endpoint.name])
        self.channels[endpoint.name] = channel
        return Replica(endpoint.name, channel, streams=self._streams, recorder=self.recorder)

    async def call(
        self,
        method: str,
        message: bytes = b"",
        deadline_ns: int | None = None,
        headers: Sequence[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """A client's call."""
        return b"".join(await self._routes[method](message, Call(method, deadline_ns, headers)))

    async def infer(self, model: str, deadline_ns: int | None = None) -> bytes:
        """A client's inference."""
        return await self.call(metadata.MODEL_INFER, infer_request(model), deadline_ns)


async def until(condition: Callable[[], bool], limit_seconds: float = 10.0) -> None:
    """Return once the condition holds, letting the loop turn in between."""
    async with asyncio.timeout(limit_seconds):
        while not condition():  # noqa: ASYNC110 - any condition, of parts that have no event for it
            await asyncio.sleep(0)


def outcomes(gateway: SmallGateway) -> dict[tuple[str, str, str], int]:
    """What was counted: calls by (rpc, model, status)."""
    return dict(gateway.recorder.statistics().requests)
