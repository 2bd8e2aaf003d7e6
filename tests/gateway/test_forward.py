"""Which worker gets a call, how often it is tried, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from reactant_node.clock import NS_PER_SECOND, MonotonicClock
from reactant_node.errors import (
    BY_STATUS,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    NodeError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from reactant_node.kserve import metadata
from reactant_node.transport.interface import CallContext
from tests.support.clock import ManualClock
from tests.support.gateway_workers import (
    ScriptedWorker,
    SmallGateway,
    entry,
    infer_request,
    outcomes,
    raising,
    until,
)

FINAL = [error for error in BY_STATUS.values() if error not in (Unavailable, NotFound)]


def pair() -> tuple[ScriptedWorker, ScriptedWorker]:
    """Two workers with one model."""
    return ScriptedWorker("a", "m"), ScriptedWorker("b", "m")


class Held:
    """An inference that waits to be let go, and notes when it is cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0
        self.go = asyncio.Event()

    async def __call__(self, _: bytes, __: CallContext) -> bytes:
        """The inference."""
        self.running += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return b"done"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


def test_bytes_pass_unchanged_and_turns_go_round() -> None:
    """The worker gets the client's very bytes, and each replica its share."""

    async def work() -> None:
        gateway = await SmallGateway(*pair()).start()
        replies = [await gateway.infer("m") for _ in range(4)]
        assert replies == [name + b":" + infer_request("m") for name in (b"a", b"b", b"a", b"b")]
        assert outcomes(gateway) == {("ModelInfer", "m", "OK"): 4}

    run(work())


def test_least_outstanding_avoids_the_busy_worker() -> None:
    """With one call held on the first, the next goes to the second."""

    async def work() -> None:
        first, second = pair()
        first.infer = held = Held()
        gateway = await SmallGateway(first, second, mode="least_outstanding").start()
        call = asyncio.ensure_future(gateway.infer("m"))
        await until(lambda: held.running == 1)
        assert (await gateway.infer("m")).startswith(b"b:")
        held.go.set()
        assert await call == b"done"

    run(work())


@pytest.mark.parametrize("error", [Unavailable("busy"), NotFound("not here")])
def test_another_replica_is_tried_where_it_may_do_better(error: NodeError) -> None:
    """UNAVAILABLE and NOT_FOUND go on to the next replica, and the client sees the good answer."""

    async def work() -> None:
        first, second = pair()
        first.infer = raising(error)
        gateway = await SmallGateway(first, second).start()
        assert (await gateway.infer("m")).startswith(b"b:")
        assert (first.count("ModelInfer"), second.count("ModelInfer")) == (1, 1)

    run(work())


@pytest.mark.parametrize("kind", FINAL)
def test_every_other_answer_is_the_requests_own(kind: type[NodeError]) -> None:
    """It comes back as it came, status and message, and is not run on another replica."""

    async def work() -> None:
        first, second = pair()
        first.infer = raising(kind("the worker's words"))
        gateway = await SmallGateway(first, second).start()
        with pytest.raises(kind, match=r"^the worker's words$"):
            await gateway.infer("m")
        assert second.count("ModelInfer") == 0
        assert outcomes(gateway) == {("ModelInfer", "m", kind.status.name): 1}

    run(work())


@pytest.mark.parametrize("order", [(Unavailable, NotFound), (NotFound, Unavailable)])
def test_each_replica_is_tried_once_and_unavailable_outlives_not_found(order: tuple[type[NodeError], ...]) -> None:
    """The replica that is away may be the one that has it: the client should try again."""

    async def work() -> None:
        workers = pair()
        for worker, kind in zip(workers, order, strict=True):
            worker.infer = raising(kind(f"said {kind.__name__}"))
        gateway = await SmallGateway(*workers).start()
        with pytest.raises(Unavailable, match=r"^said Unavailable$"):
            await gateway.infer("m")
        assert [worker.count("ModelInfer") for worker in workers] == [1, 1]

    run(work())


def test_a_worker_that_dies_costs_its_calls_one_failover() -> None:
    """In flight and waiting calls alike end on the other worker, at once."""

    async def work() -> None:
        first, second = pair()
        first.infer = held = Held()
        gateway = await SmallGateway(first, second, streams=2).start()
        calls = [asyncio.ensure_future(gateway.infer("m")) for _ in range(10)]
        await until(lambda: held.running == 2 and second.count("ModelInfer") == 5)
        gateway.channels["a"].break_off()
        gateway.discovery.remove("a")
        assert all(reply.startswith(b"b:") for reply in await asyncio.gather(*calls))

    run(work())


def trio() -> list[ScriptedWorker]:
    """Three workers with one model."""
    return [ScriptedWorker(name, "m") for name in "abc"]


def test_a_request_that_kills_its_worker_goes_to_one_more_at_most() -> None:
    """UNAVAILABLE after the second loss; a third worker never sees it, and serves on."""

    async def work() -> None:
        workers = trio()
        for worker in workers[:2]:
            worker.infer = raising(ConnectionLost(f"{worker.name} is gone: connection lost"))
        gateway = await SmallGateway(*workers).start()
        with pytest.raises(ConnectionLost, match="b is gone"):
            await gateway.infer("m")
        assert [worker.count("ModelInfer") for worker in workers] == [1, 1, 0]
        assert outcomes(gateway) == {("ModelInfer", "m", "UNAVAILABLE"): 1}

    run(work())


@pytest.mark.parametrize("other", [Unavailable("connection refused"), NotFound("not here")])
def test_a_lost_call_goes_on_past_workers_that_never_had_it(other: NodeError) -> None:
    """Only workers that took the call along count."""

    async def work() -> None:
        workers = trio()
        workers[0].infer = raising(ConnectionLost("a is gone: connection lost"))
        workers[1].infer = raising(other)
        gateway = await SmallGateway(*workers).start()
        assert (await gateway.infer("m")).startswith(b"c:")

    run(work())


def test_with_every_worker_dead_calls_are_unavailable() -> None:
    """At once, never NOT_FOUND, and the model keeps its label."""

    async def work() -> None:
        workers = pair()
        gateway = await SmallGateway(*workers).start()
        for worker in workers:
            gateway.channels[worker.name].break_off()
        with pytest.raises(Unavailable, match="connection refused"):
            await gateway.infer("m")
        for worker in workers:
            gateway.discovery.remove(worker.name)
        with pytest.raises(Unavailable, match="no worker can be reached"):
            await gateway.infer("m")
        assert outcomes(gateway) == {("ModelInfer", "m", "UNAVAILABLE"): 2}

    run(work())


def test_an_unknown_model_is_looked_for_once_and_then_a_worker_says_not_found() -> None:
    """One round, then one worker's own words; the name does not become a label."""

    async def work() -> None:
        workers = pair()
        gateway = await SmallGateway(*workers, clock=ManualClock()).start()
        asked = [worker.count("RepositoryIndex") for worker in workers]
        for _ in range(3):
            with pytest.raises(NotFound, match="no model 'ghost', says a worker"):
                await gateway.infer("ghost")
        assert [worker.count("RepositoryIndex") for worker in workers] == [count + 1 for count in asked]
        assert sum(worker.count("ModelInfer") for worker in workers) == 3
        assert outcomes(gateway) == {("ModelInfer", "", "NOT_FOUND"): 3}

    run(work())


def test_a_model_that_has_just_been_added_is_found() -> None:
    """The first request for it waits for one round and is served."""

    async def work() -> None:
        first, second = pair()
        gateway = await SmallGateway(first, second).start()
        second.rows.append(entry("new"))
        assert (await gateway.infer("new")).startswith(b"b:")
        assert outcomes(gateway) == {("ModelInfer", "new", "OK"): 1}

    run(work())


def test_a_model_that_cannot_run_is_answered_by_a_worker_that_knows_why() -> None:
    """The reason is the worker's."""

    async def work() -> None:
        first, second = pair()
        second.rows.append(entry("broken", "UNAVAILABLE", "no such operator"))
        gateway = await SmallGateway(first, second).start()
        with pytest.raises(NotFound, match="broken: no such operator"):
            await gateway.infer("broken")
        assert first.count("ModelInfer") == 0

    run(work())


def test_a_not_found_asks_for_news() -> None:
    """A worker that no longer has the model is asked again, without the client waiting for it."""

    async def work() -> None:
        clock = ManualClock()
        first, second = pair()
        gateway = await SmallGateway(first, second, clock=clock).start()
        first.rows.clear()
        clock.advance(1)
        assert (await gateway.infer("m")).startswith(b"b:")
        await until(lambda: gateway.discovery.table.replicas["m"] == ("b",))

    run(work())


def test_malformed_requests_end_here() -> None:
    """Bytes that are no message are INVALID_ARGUMENT under an empty label, and reach no worker."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker).start()
        with pytest.raises(InvalidArgument, match="malformed"):
            await gateway.call(metadata.MODEL_INFER, b"\xff\xff")
        assert worker.count("ModelInfer") == 0
        assert outcomes(gateway) == {("ModelInfer", "", "INVALID_ARGUMENT"): 1}

    run(work())


def test_the_clients_deadline_and_metadata_go_on_to_the_worker() -> None:
    """The absolute deadline is one for all tries; without one there is the configured time from now."""

    async def work() -> None:
        first, second = pair()
        first.infer = raising(Unavailable("busy"))
        clock = ManualClock()
        gateway = await SmallGateway(first, second, clock=clock, timeout_seconds=60).start()
        soon = clock.now_ns() + NS_PER_SECOND
        await gateway.call(metadata.MODEL_INFER, infer_request("m"), soon, [("traceparent", "00-1")])
        await gateway.infer("m")
        later = clock.now_ns() + 60 * NS_PER_SECOND
        assert [context.deadline_ns for context in first.contexts] == [soon]
        assert [context.deadline_ns for context in second.contexts] == [soon, later]
        assert list(second.contexts[0].metadata) == [("traceparent", "00-1")]

    run(work())


def test_a_deadline_that_has_passed_sends_nothing() -> None:
    """Nobody is waiting for the answer any more."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker).start()
        with pytest.raises(DeadlineExceeded):
            await gateway.infer("m", gateway.clock.now_ns() - 1)
        assert worker.count("ModelInfer") == 0

    run(work())


def test_calls_beyond_a_workers_streams_wait_their_turn() -> None:
    """No more than the limit are at the worker; the others wait, and questions pass them."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        worker.infer = held = Held()
        gateway = await SmallGateway(worker, streams=2).start()
        calls = [asyncio.ensure_future(gateway.infer("m")) for _ in range(5)]
        await until(lambda: held.running == 2 and gateway.forwarder.in_flight == 5)
        assert repr(gateway.discovery.replicas["a"]) == "<Replica a in use, 5 calls>"
        assert await gateway.call(metadata.MODEL_METADATA, metadata.encode_model_query(metadata.ModelQuery("m", "")))
        assert worker.count("ModelInfer") == 2
        held.go.set()
        assert await asyncio.gather(*calls) == [b"done"] * 5

    run(work())


def test_waiting_for_a_stream_ends_at_the_deadline() -> None:
    """DEADLINE_EXCEEDED, and the place in the line is given up."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        worker.infer = held = Held()
        gateway = await SmallGateway(worker, streams=1).start()
        first = asyncio.ensure_future(gateway.infer("m"))
        await until(lambda: held.running == 1)
        with pytest.raises(DeadlineExceeded, match="streams to a were busy"):
            await gateway.infer("m", MonotonicClock().now_ns() + NS_PER_SECOND // 50)
        held.go.set()
        assert await first == b"done"
        assert await gateway.infer("m") == b"done"

    run(work())


def test_the_cap_sheds_inferences_and_nothing_else() -> None:
    """RESOURCE_EXHAUSTED beyond the cap, counted; questions and later inferences go through."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        worker.infer = held = Held()
        gateway = await SmallGateway(worker, max_in_flight=2).start()
        calls = [asyncio.ensure_future(gateway.infer("m")) for _ in range(2)]
        await until(lambda: held.running == 2)
        with pytest.raises(ResourceExhausted, match="2 requests are in flight, and no more than 2"):
            await gateway.infer("m")
        assert await gateway.call(metadata.SERVER_READY) == metadata.encode_ready(ready=True)
        assert gateway.recorder.statistics().shed == 1
        assert repr(gateway.forwarder) == "<Forwarder 2 inferences in flight>"
        held.go.set()
        await asyncio.gather(*calls)
        assert await gateway.infer("m") == b"done"
        assert gateway.forwarder.in_flight == 0

    run(work())


def test_a_client_that_goes_away_cancels_its_call_at_the_worker() -> None:
    """The worker is told, the stream is free again, and the call counts as CANCELLED."""

    async def work() -> None:
        worker = ScriptedWorker("a", "m")
        worker.infer = held = Held()
        gateway = await SmallGateway(worker, streams=1).start()
        call = asyncio.ensure_future(gateway.infer("m"))
        await until(lambda: held.running == 1)
        call.cancel()
        await asyncio.wait([call])
        assert held.cancelled == 1
        held.go.set()
        assert await gateway.infer("m") == b"done"
        assert outcomes(gateway) == {("ModelInfer", "m", "CANCELLED"): 1, ("ModelInfer", "m", "OK"): 1}
        assert gateway.forwarder.in_flight == 0

    run(work())
