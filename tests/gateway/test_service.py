"""The node answers as one server, whatever stands behind it."""

from __future__ import annotations

import asyncio

import pytest

from reactant_node.errors import Internal, InvalidArgument, NotFound, Unavailable
from reactant_node.kserve import metadata
from reactant_node.kserve.metadata import IndexEntry
from reactant_node.kserve.pb import health_pb2
from reactant_node.kserve.statistics import (
    BatchDurations,
    Duration,
    ModelStatistics,
    RequestDurations,
    decode_statistics,
)
from tests.support.gateway_workers import (
    ScriptedWorker,
    SmallGateway,
    entry,
    index_request,
    model_query,
    outcomes,
    until,
)

READY, NOT_READY = metadata.encode_ready(ready=True), metadata.encode_ready(ready=False)


def health_request(service: str) -> bytes:
    """A serialized HealthCheckRequest."""
    return health_pb2.HealthCheckRequest(service=service).SerializeToString()


async def index(gateway: SmallGateway, *, ready: bool = False) -> tuple[IndexEntry, ...]:
    """The node's repository index."""
    return metadata.decode_index(await gateway.call(metadata.REPOSITORY_INDEX, index_request(ready=ready)))


def test_minimal_answers_inference_and_health_only() -> None:
    """`gateway.rpcs: minimal` leaves the questions UNIMPLEMENTED, as the reference does."""

    async def run() -> None:
        gateway = SmallGateway()
        assert set(gateway.service.routes("minimal")) == {metadata.MODEL_INFER, metadata.HEALTH_CHECK}
        assert set(gateway.service.routes("node")) == {
            metadata.MODEL_INFER,
            metadata.HEALTH_CHECK,
            metadata.SERVER_LIVE,
            metadata.SERVER_READY,
            metadata.SERVER_METADATA,
            metadata.MODEL_READY,
            metadata.MODEL_METADATA,
            metadata.MODEL_CONFIG,
            metadata.MODEL_STATISTICS,
            metadata.REPOSITORY_INDEX,
        }

    asyncio.run(run())


@pytest.mark.parametrize("reason", [None, "no worker is ready", "draining"])
def test_all_faces_of_readiness_are_one_fact(reason: str | None) -> None:
    """ServerReady and the health check say what /readyz says; ServerLive does not depend on it."""

    async def run() -> None:
        gateway = SmallGateway()
        gateway.not_ready = reason
        ready = reason is None
        assert metadata.decode_ready(await gateway.call(metadata.SERVER_READY)) is ready
        for service in ("", "inference.GRPCInferenceService"):
            assert await gateway.call(metadata.HEALTH_CHECK, health_request(service)) == metadata.encode_health(ready)
        assert await gateway.call(metadata.SERVER_LIVE) == metadata.encode_live(live=True)

    asyncio.run(run())


def test_health_of_a_service_that_does_not_exist_is_not_found() -> None:
    """As the health protocol says."""

    async def run() -> None:
        with pytest.raises(NotFound, match="unknown service 'x'"):
            await SmallGateway().call(metadata.HEALTH_CHECK, health_request("x"))

    asyncio.run(run())


def test_what_a_worker_can_say_is_a_workers_answer() -> None:
    """Questions about the server or a model are passed on, byte for byte, to one that has the model."""

    async def run() -> None:
        first, second = ScriptedWorker("a", "m"), ScriptedWorker("b", "m", "n")
        gateway = await SmallGateway(first, second).start()
        assert await gateway.call(metadata.SERVER_METADATA) == metadata.encode_server_metadata("the worker's", "1", [])
        for _ in range(2):
            assert await gateway.call(metadata.MODEL_METADATA, model_query("n")) == b"metadata from b"
            assert await gateway.call(metadata.MODEL_CONFIG, model_query("n")) == b"config from b"
        assert await gateway.call(metadata.MODEL_READY, model_query("m")) == READY
        with pytest.raises(NotFound, match="no model 'x', says a worker"):
            await gateway.call(metadata.MODEL_METADATA, model_query("x"))

    asyncio.run(run())


def test_a_model_nobody_has_is_not_ready_and_no_error() -> None:
    """Unknown, broken, or no worker at all: a probe gets false."""

    async def run() -> None:
        worker = ScriptedWorker("a", "m")
        worker.rows.append(entry("broken", "UNAVAILABLE", "why"))
        gateway = await SmallGateway(worker).start()
        for model in ("unknown", "broken", ""):
            assert await gateway.call(metadata.MODEL_READY, model_query(model)) == NOT_READY
        gateway.discovery.remove("a")
        assert await gateway.call(metadata.MODEL_READY, model_query("m")) == NOT_READY
        with pytest.raises(Unavailable):
            await gateway.call(metadata.MODEL_METADATA, model_query("m"))
        with pytest.raises(Unavailable):
            await gateway.call(metadata.SERVER_METADATA)

    asyncio.run(run())


def test_the_index_is_merged_over_the_workers_and_filtered_as_asked() -> None:
    """READY if ready anywhere, else the reason; asked afresh, so that a model loaded since the last round is there."""

    async def run() -> None:
        first, second = ScriptedWorker("a", "m"), ScriptedWorker("b")
        second.rows += [entry("m", "UNAVAILABLE", "no memory"), entry("broken", "UNAVAILABLE", "why")]
        gateway = await SmallGateway(first, second).start()
        assert await index(gateway) == (entry("broken", "UNAVAILABLE", "why"), entry("m"))
        assert await index(gateway, ready=True) == (entry("m"),)
        first.rows.append(entry("new"))
        assert await index(gateway, ready=True) == (entry("m"), entry("new"))

    asyncio.run(run())


def test_a_worker_that_does_not_answer_is_left_out_of_the_index() -> None:
    """The others' rows are there; with nobody left the index is UNAVAILABLE and not empty."""

    async def run() -> None:
        gateway = await SmallGateway(ScriptedWorker("a", "m"), ScriptedWorker("b", "n")).start()
        gateway.channels["a"].break_off()
        assert await index(gateway) == (entry("n"),)
        gateway.channels["b"].break_off()
        with pytest.raises(Unavailable):
            await index(gateway)

    asyncio.run(run())


def counted(name: str, requests: int, size: int, last_inference_ms: int) -> ModelStatistics:
    """So many requests, each of so many rows, each alone and in 7 ns."""
    took = Duration(requests, 7 * requests)
    return ModelStatistics(
        name,
        "1",
        last_inference_ms,
        requests * size,
        requests,
        RequestDurations(success=took, compute_infer=took),
        {size: BatchDurations(compute_infer=took)},
    )


async def statistics(gateway: SmallGateway, model: str = "") -> tuple[ModelStatistics, ...]:
    """The node's statistics."""
    return decode_statistics(await gateway.call(metadata.MODEL_STATISTICS, model_query(model)))


def test_statistics_are_those_of_all_workers_together() -> None:
    """Counts and times are summed, batches by their size; of the newest inference the node has the newest."""

    async def run() -> None:
        first, second = ScriptedWorker("a", "m"), ScriptedWorker("b", "m", "n")
        first.counted = [counted("m", 3, 4, last_inference_ms=50)]
        second.counted = [counted("n", 1, 1, last_inference_ms=70), counted("m", 2, 8, last_inference_ms=60)]
        gateway = await SmallGateway(first, second).start()
        took = Duration(5, 35)
        both = ModelStatistics(
            "m",
            "1",
            last_inference_ms=60,
            inference_count=28,
            execution_count=5,
            requests=RequestDurations(success=took, compute_infer=took),
            batches={4: BatchDurations(Duration(), Duration(3, 21)), 8: BatchDurations(Duration(), Duration(2, 14))},
        )
        assert await statistics(gateway) == (both, second.counted[0])
        assert await statistics(gateway, "m") == (both,)
        assert await statistics(gateway, "n") == (second.counted[0],)

    asyncio.run(run())


def test_statistics_that_no_worker_has_are_what_the_best_informed_one_says() -> None:
    """A worker without the model is left out; with none that has it, the reason of one that knows it goes first."""

    async def run() -> None:
        gateway = await SmallGateway(ScriptedWorker("a", "m"), ScriptedWorker("b", "n")).start()
        gateway.channels["b"].nonsense = True
        assert await statistics(gateway, "m") == (ModelStatistics("m", "1"),)
        with pytest.raises(Internal):
            await statistics(gateway, "n")
        gateway.channels["b"].nonsense = False
        with pytest.raises(NotFound, match="no model 'x', says a worker"):
            await statistics(gateway, "x")
        for worker in "ab":
            gateway.channels[worker].break_off()
        with pytest.raises(Unavailable):
            await statistics(gateway)
        for worker in "ab":
            gateway.discovery.remove(worker)
        with pytest.raises(Unavailable, match="no worker can be reached"):
            await statistics(gateway)

    asyncio.run(run())


@pytest.mark.parametrize(
    "method",
    [
        metadata.MODEL_READY,
        metadata.MODEL_METADATA,
        metadata.MODEL_CONFIG,
        metadata.MODEL_STATISTICS,
        metadata.REPOSITORY_INDEX,
        metadata.HEALTH_CHECK,
    ],
)
def test_malformed_questions_are_the_clients_fault(method: str) -> None:
    """INVALID_ARGUMENT, counted without a model."""

    async def run() -> None:
        gateway = await SmallGateway(ScriptedWorker("a", "m")).start()
        with pytest.raises(InvalidArgument, match="malformed"):
            await gateway.call(method, b"\xff")
        assert outcomes(gateway) == {(method.rpartition("/")[2], "", "INVALID_ARGUMENT"): 1}

    asyncio.run(run())


def test_names_that_only_clients_say_never_become_labels() -> None:
    """However many models are made up, there is one series for them; a model once listed keeps its own."""

    async def run() -> None:
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker).start()
        for number in range(50):
            with pytest.raises(NotFound):
                await gateway.infer(f"made up {number}")
        worker.rows.clear()
        gateway.add(worker)
        await until(lambda: gateway.discovery.table.workers == ("a",))
        with pytest.raises(NotFound):
            await gateway.infer("m")
        assert outcomes(gateway) == {("ModelInfer", "", "NOT_FOUND"): 50, ("ModelInfer", "m", "NOT_FOUND"): 1}

    asyncio.run(run())
