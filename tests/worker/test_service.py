"""Statistics and configuration as the worker answers them: every request is in the counts, once, to the nanosecond."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from reactant_node.clock import NS_PER_SECOND
from reactant_node.config.schema import SchedulerConfig, WorkerConfig
from reactant_node.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ModelLoadError,
    NodeError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from reactant_node.kserve import metadata
from reactant_node.kserve.statistics import (
    BatchDurations,
    Duration,
    ModelStatistics,
    RequestDurations,
    decode_statistics,
)
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec
from reactant_node.runtime.fake import FakeModel, FakeSession
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.tensors import NamedTensor
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.service import EXTENSIONS, InferenceService
from tests.support.clock import ManualClock
from tests.support.gateway_workers import Call
from tests.support.wire_messages import raw_request

LIMIT_SECONDS = 20.0
S = NS_PER_SECOND
SIGNATURE = ModelSignature((TensorSpec("x", "FP32", ("n", 2)),), (TensorSpec("y", "FP32", ("n", 2)),))
AXIS = BatchAxis(0, "the test says so", max_rows=8)


class Turnstile:
    """The body of a model: echoes x, each run only when it is let, and refuses a 13."""

    def __init__(self) -> None:
        self._entered, self._let = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """One run."""
        self._entered.release()
        assert self._let.acquire(timeout=LIMIT_SECONDS)
        if 13 in arrays["x"]:
            raise InvalidArgument("13 is out of range")
        return {"y": arrays["x"]}

    async def entered(self) -> None:
        """Return once a run waits, each run once."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=LIMIT_SECONDS)

    def let(self, runs: int = 1) -> None:
        """Let so many runs pass."""
        self._let.release(runs)


@dataclass
class Served:
    """A worker's service with the model `m`, and others that are not ready."""

    service: InferenceService
    clock: ManualClock
    turnstile: Turnstile
    dispatcher: Dispatcher

    async def call(self, method: str, message: bytes = b"", deadline_ns: int | None = None) -> bytes:
        """A client's call."""
        return b"".join(await self.service.routes()[method](message, Call(method, deadline_ns)))

    def begin(self, rows: int = 1, fill: float = 1, seconds: float | None = None) -> asyncio.Task[bytes]:
        """A client's inference, on its way."""
        tensor = NamedTensor("x", "FP32", np.full((rows, 2), fill, np.float32))
        deadline_ns = None if seconds is None else self.clock.now_ns() + round(seconds * S)
        message = raw_request(tensor).SerializeToString()
        return asyncio.create_task(self.call(metadata.MODEL_INFER, message, deadline_ns))

    async def statistics(self, model: str = "m", version: str = "") -> tuple[ModelStatistics, ...]:
        """What it says of its counts; the time of day of the newest inference as 1 where there was one."""
        query = metadata.encode_model_query(metadata.ModelQuery(model, version))
        models = decode_statistics(await self.call(metadata.MODEL_STATISTICS, query))
        return tuple(replace(model, last_inference_ms=min(1, model.last_inference_ms)) for model in models)


@asynccontextmanager
async def served(depth: int = 1024) -> AsyncIterator[Served]:
    """Stopped at the end."""
    clock, turnstile, catalog = ManualClock(), Turnstile(), Catalog()
    dispatcher = Dispatcher(clock, SchedulerConfig(max_queue_depth=depth))
    session = FakeSession(FakeModel(SIGNATURE, turnstile))
    catalog.put(ServedModel("m", "3").moved_to(ModelState.READY, session=session, batch_axis=AXIS))
    catalog.put(ServedModel("loading", "1"))
    catalog.put(ServedModel("broken", "1").moved_to(ModelState.UNAVAILABLE, reason="no such op"))
    catalog.complete()
    dispatcher.add_model("m", BatchLimits(coalescable=True, max_rows=8))
    dispatcher.start()
    service = InferenceService(WorkerConfig("worker0", "", 1, ()), "cpu", catalog, dispatcher, clock)
    try:
        yield Served(service, clock, turnstile, dispatcher)
    finally:
        turnstile.let(1000)
        assert await asyncio.to_thread(dispatcher.stop, LIMIT_SECONDS)


def test_every_request_of_a_batch_has_its_wait_and_the_whole_run() -> None:
    """Three requests in two executions: counts, rows, nanoseconds and sizes, nothing else."""

    async def scenario() -> tuple[ModelStatistics, ...]:
        async with served() as worker:
            first = worker.begin(rows=1)
            await worker.turnstile.entered()
            behind = [worker.begin(rows=2), worker.begin(rows=3)]
            await asyncio.sleep(0)
            worker.clock.advance(2)
            worker.turnstile.let()
            await first
            await worker.turnstile.entered()
            worker.clock.advance(1)
            worker.turnstile.let()
            await asyncio.gather(*behind)
            return await worker.statistics()

    assert asyncio.run(scenario()) == (
        ModelStatistics(
            "m",
            "3",
            last_inference_ms=1,
            inference_count=6,
            execution_count=2,
            requests=RequestDurations(
                success=Duration(3, 2 * S + 3 * S + 3 * S),
                queue=Duration(3, 2 * S + 2 * S),
                compute_input=Duration(3, 0),
                compute_infer=Duration(3, 2 * S + 1 * S + 1 * S),
                compute_output=Duration(3, 0),
            ),
            batches={
                1: BatchDurations(Duration(1, 0), Duration(1, 2 * S), Duration(1, 0)),
                5: BatchDurations(Duration(1, 0), Duration(1, 1 * S), Duration(1, 0)),
            },
        ),
    )


def test_a_request_that_was_run_again_has_waited_until_then() -> None:
    """The joined run that failed counts for nobody; what was run alone counts alone, and the bad one as a failure."""

    async def scenario() -> tuple[ModelStatistics, ...]:
        async with served() as worker:
            first = worker.begin()
            await worker.turnstile.entered()
            good, bad = worker.begin(rows=2), worker.begin(fill=13)
            await asyncio.sleep(0)
            worker.turnstile.let()
            await first
            for _ in range(3):  # together, then each alone
                await worker.turnstile.entered()
                worker.clock.advance(1)
                worker.turnstile.let()
            await good
            with pytest.raises(InvalidArgument, match="13"):
                await bad
            return await worker.statistics()

    (model,) = asyncio.run(scenario())
    assert (model.requests.success, model.requests.fail) == (Duration(2, 3 * S), Duration(1, 3 * S))
    assert (model.requests.queue, model.requests.compute_infer) == (Duration(2, 1 * S), Duration(2, 1 * S))
    assert (model.inference_count, model.execution_count) == (3, 2)
    assert {size: batch.compute_infer for size, batch in model.batches.items()} == {
        1: Duration(1, 0),
        2: Duration(1, 1 * S),
    }


def test_a_request_that_comes_to_nothing_is_a_failure_whatever_the_reason() -> None:
    """A wrong shape, a full queue, a passed deadline, a client that goes away: each once, with the time it took."""

    async def scenario() -> tuple[ModelStatistics, ...]:
        async with served(depth=2) as worker:
            first = worker.begin()
            await worker.turnstile.entered()
            late, cancelled = worker.begin(seconds=1), worker.begin()
            await asyncio.sleep(0)
            with pytest.raises(ResourceExhausted):
                await worker.begin()
            with pytest.raises(InvalidArgument, match="at most 8"):
                await worker.begin(rows=9)
            worker.clock.advance(2)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            worker.turnstile.let()
            with pytest.raises(DeadlineExceeded):
                await late
            await first
            return await worker.statistics()

    (model,) = asyncio.run(scenario())
    assert model.requests == RequestDurations(
        success=Duration(1, 2 * S),
        fail=Duration(4, 4 * S),
        queue=Duration(1, 0),
        compute_input=Duration(1, 0),
        compute_infer=Duration(1, 2 * S),
        compute_output=Duration(1, 0),
    )
    assert (model.inference_count, model.execution_count) == (1, 1)


def test_requests_that_no_model_was_found_for_are_in_no_models_counts() -> None:
    """Malformed, unknown, or not ready."""

    async def scenario() -> tuple[ModelStatistics, ...]:
        async with served() as worker:
            tensor = NamedTensor("x", "FP32", np.ones((1, 2), np.float32))
            messages = [raw_request(tensor, model=name).SerializeToString() for name in ("nobody", "broken", "loading")]
            for message in (b"\xff", *messages):
                with pytest.raises(NodeError):
                    await worker.call(metadata.MODEL_INFER, message)
            return await worker.statistics("")

    assert asyncio.run(scenario()) == (ModelStatistics("m", "3"),)


@pytest.mark.parametrize("method", [metadata.MODEL_STATISTICS, metadata.MODEL_CONFIG])
@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [
        ("nobody", "", NotFound),
        ("broken", "", ModelLoadError),
        ("loading", "", Unavailable),
        ("m", "4", NotFound),
        ("m", "x", InvalidArgument),
    ],
)
def test_a_question_about_a_model_that_is_not_there_has_the_status_of_an_inference(
    method: str, model: str, version: str, expected: type[NodeError]
) -> None:
    """Unknown, refused and loading models are told apart."""

    async def scenario() -> None:
        async with served() as worker:
            with pytest.raises(expected):
                await worker.call(method, metadata.encode_model_query(metadata.ModelQuery(model, version)))

    asyncio.run(scenario())


def test_a_configuration_says_what_is_served() -> None:
    """Name, version, largest request, dims without the batch axis, and that requests are joined."""

    async def scenario() -> Any:
        async with served() as worker:
            query = metadata.encode_model_query(metadata.ModelQuery("m", "3"))
            message = await worker.call(metadata.MODEL_CONFIG, query)
            return service_pb2.ModelConfigResponse.FromString(message).config

    config = asyncio.run(scenario())
    assert (config.name, list(config.version_policy.specific.versions), config.max_batch_size) == ("m", [3], 8)
    assert [(tensor.name, list(tensor.dims)) for tensor in (*config.input, *config.output)] == [("x", [2]), ("y", [2])]
    assert config.HasField("dynamic_batching")


def test_the_extensions_that_are_served_are_named() -> None:
    """A client that looks for them finds them, and each named one is served."""

    async def scenario() -> Any:
        async with served() as worker:
            assert {metadata.MODEL_CONFIG, metadata.MODEL_STATISTICS} <= worker.service.routes().keys()
            return service_pb2.ServerMetadataResponse.FromString(await worker.call(metadata.SERVER_METADATA))

    assert set(asyncio.run(scenario()).extensions) == {*EXTENSIONS} >= {"model_configuration", "statistics"}


def test_an_abandoned_run_is_a_failure_of_its_callers() -> None:
    """Who was told that the run took too long is not told later that it succeeded."""

    async def scenario() -> ModelStatistics:
        async with served() as worker:
            stuck = worker.begin()
            await worker.turnstile.entered()
            worker.clock.advance(4)
            worker.dispatcher.abandon_run("too long")
            with pytest.raises(Internal, match="too long"):
                await stuck
            return (await worker.statistics())[0]

    assert asyncio.run(scenario()).requests == RequestDurations(fail=Duration(1, 4 * S))
