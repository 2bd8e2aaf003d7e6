"""The methods the gateway answers, for the node as a whole.

A client must not notice whether there is one worker or several. So what a worker can say is a worker's answer,
passed on; only what is the node's own is said here: that it lives, whether it is ready (the same fact as /readyz),
and the index and the statistics, which are every worker's together. Methods without a route are UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import NodeError, NotFound, Unavailable
from reactant_node.gateway.discovery import PROBE_SECONDS, Discovery
from reactant_node.gateway.forward import NO_WORKER, Forwarder
from reactant_node.gateway.observe import Recorder
from reactant_node.gateway.table import merge_index
from reactant_node.kserve import metadata
from reactant_node.kserve.peek import peek_infer
from reactant_node.kserve.statistics import decode_statistics, encode_statistics, sum_statistics
from reactant_node.telemetry.calls import Measurement
from reactant_node.transport.interface import Buffer, CallContext, Handler, Routes

Answer = Callable[[bytes, CallContext, Measurement], Awaitable[bytes]]
T = TypeVar("T")


class NodeService:
    """Answers calls on the public port. Holds no state of its own.

    Args:
        discovery: the workers.
        forwarder: sends calls on to them.
        recorder: counts every call.
        not_ready: why the node cannot serve now, or None: the same callable that /readyz asks.
    """

    def __init__(
        self,
        discovery: Discovery,
        forwarder: Forwarder,
        recorder: Recorder,
        not_ready: Callable[[], str | None],
    ) -> None:
        self._discovery, self._forwarder, self._recorder = discovery, forwarder, recorder
        self._not_ready = not_ready

    def routes(self, rpcs: str) -> Routes:
        """Method paths and handlers; `rpcs` is `gateway.rpcs`: `node`, or `minimal` for ModelInfer and health only."""
        answers: dict[str, Answer] = {metadata.MODEL_INFER: self._model_infer, metadata.HEALTH_CHECK: self._health}
        if rpcs == "node":
            answers |= {
                metadata.SERVER_LIVE: self._server_live,
                metadata.SERVER_READY: self._server_ready,
                metadata.SERVER_METADATA: self._server_metadata,
                metadata.MODEL_READY: self._model_ready,
                metadata.MODEL_METADATA: self._model_question,
                metadata.MODEL_CONFIG: self._model_question,
                metadata.MODEL_STATISTICS: self._model_statistics,
                metadata.REPOSITORY_INDEX: self._repository_index,
            }
        return {method: self._measured(method, answer) for method, answer in answers.items()}

    def _measured(self, method: str, answer: Answer) -> Handler:
        rpc = method.rpartition("/")[2]

        async def handler(message: bytes, context: CallContext) -> Sequence[Buffer]:
            with self._recorder.measure(rpc, context.deadline_ns) as measurement:
                return (await answer(message, context, measurement),)

        return handler

    async def _model_infer(self, message: bytes, context: CallContext, measurement: Measurement) -> bytes:
        model = peek_infer(message).model
        with self._labelled(measurement, model), self._forwarder.admitted():
            return await self._forwarder.infer(model, message, context)

    @contextmanager
    def _labelled(self, measurement: Measurement, model: str) -> Iterator[None]:
        """Label the call with its model if a worker has ever listed it: looked up at the end, when it was asked for."""
        try:
            yield
        finally:
            measurement.model = model if model in self._discovery.models_ever_listed else ""

    async def _server_live(self, _: bytes, __: CallContext, ___: Measurement) -> bytes:
        return metadata.encode_live(live=True)

    async def _server_ready(self, _: bytes, __: CallContext, ___: Measurement) -> bytes:
        return metadata.encode_ready(ready=self._not_ready() is None)

    async def _server_metadata(self, message: bytes, context: CallContext, _: Measurement) -> bytes:
        return await self._forwarder.ask("", message, context)

    async def _model_ready(self, message: bytes, context: CallContext, measurement: Measurement) -> bytes:
        model = metadata.decode_model_query(message).model
        try:
            with self._labelled(measurement, model):
                return await self._forwarder.ask(model, message, context)
        except Unavailable:  # no worker: so it is not, and a probe wants that as an answer
            return metadata.encode_ready(ready=False)

    async def _model_question(self, message: bytes, context: CallContext, measurement: Measurement) -> bytes:
        model = metadata.decode_model_query(message).model
        with self._labelled(measurement, model):
            return await self._forwarder.ask(model, message, context)

    async def _repository_index(self, message: bytes, context: CallContext, _: Measurement) -> bytes:
        metadata.decode_index_request(message)  # a malformed one is told so here, and not by every worker
        replies = await self._ask_all(message, context, metadata.decode_index)
        indexes = [reply for reply in replies if not isinstance(reply, NodeError)]
        if not indexes:
            raise Unavailable(NO_WORKER)
        return metadata.encode_index(merge_index(row for index in indexes for row in index))

    async def _model_statistics(self, message: bytes, context: CallContext, measurement: Measurement) -> bytes:
        with self._labelled(measurement, metadata.decode_model_query(message).model):
            replies = await self._ask_all(message, context, decode_statistics)
            counted = [reply for reply in replies if not isinstance(reply, NodeError)]
            if not counted:
                # NOT_FOUND comes last: a worker that says anything else knows more of the model.
                errors = [reply for reply in replies if isinstance(reply, NodeError)]
                raise min(errors, key=lambda error: isinstance(error, NotFound), default=Unavailable(NO_WORKER))
            return encode_statistics(sum_statistics(model for reply in counted for model in reply))

    async def _ask_all(
        self, message: bytes, context: CallContext, decode: Callable[[bytes], T]
    ) -> Sequence[T | NodeError]:
        """What every worker answers to the client's own question, or why it does not."""
        return await asyncio.gather(
            *(self._ask(worker, message, context, decode) for worker in self._discovery.table.workers)
        )

    async def _ask(
        self, worker: str, message: bytes, context: CallContext, decode: Callable[[bytes], T]
    ) -> T | NodeError:
        soon_ns = self._recorder.clock.now_ns() + round(PROBE_SECONDS * NS_PER_SECOND)
        deadline_ns = min(soon_ns, self._forwarder.deadline_ns(context))
        replica = self._discovery.replicas.get(worker)
        if replica is None:
            return Unavailable(f"{worker} is gone")
        try:
            return decode(await replica.ask(context.method, message, deadline_ns=deadline_ns))
        except NodeError as error:
            return error

    async def _health(self, message: bytes, _: CallContext, __: Measurement) -> bytes:
        service = metadata.decode_health_request(message)
        if service not in ("", metadata.INFERENCE_SERVICE):
            raise NotFound(f"health: unknown service {service!r}; ask for '' or {metadata.INFERENCE_SERVICE!r}")
        return metadata.encode_health(serving=self._not_ready() is None)
