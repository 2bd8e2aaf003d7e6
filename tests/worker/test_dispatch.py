"""The dispatch thread: one run at a time, each request answered exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from reactant_node.clock import NS_PER_SECOND, MonotonicClock
from reactant_node.config.schema import SchedulerConfig
from reactant_node.errors import DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted, Unavailable
from reactant_node.models.signature import ModelSignature
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.tensors import NamedTensor
from reactant_node.worker.batch import Job
from reactant_node.worker.dispatch import Dispatcher
from tests.support.clock import ManualClock

LIMIT_SECONDS = 20.0


class GateSession:
    """Echoes its inputs; each run waits until the gate is open, and is recorded."""

    signature = ModelSignature((), ())
    provider = "CPUExecutionProvider"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.ran: list[int] = []
        self.error: Exception | None = None
        self.closed_after: int | None = None

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Wait for the gate, then echo or raise."""
        self.entered.set()
        assert self.gate.wait(LIMIT_SECONDS)
        self.ran.append(int(inputs[0].data[0]))
        if self.error is not None:
            raise self.error
        return [NamedTensor(name, "INT64", inputs[0].data) for name in outputs]

    def close(self) -> None:
        """Remember how many runs came before."""
        assert self.closed_after is None
        self.closed_after = len(self.ran)


def job(session: GateSession, number: int, *, model: str = "m", deadline_ns: int | None = None) -> Job:
    """A job whose input is its number."""
    tensor = NamedTensor("x", "INT64", np.array([number], dtype="<i8"))
    return Job(model, session, (tensor,), ("y",), deadline_ns=deadline_ns)


@asynccontextmanager
async def running(clock: MonotonicClock | ManualClock, depth: int = 1024) -> AsyncIterator[Dispatcher]:
    """A started dispatcher that is stopped at the end."""
    dispatcher = Dispatcher(clock, SchedulerConfig(discipline="fifo", max_queue_depth=depth))
    for model in ("m", "other"):
        dispatcher.add_model(model, BatchLimits())
    dispatcher.add_model("rows", BatchLimits(coalescable=True))
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        assert await asyncio.to_thread(dispatcher.stop, LIMIT_SECONDS)


def queue_depths(dispatcher: Dispatcher) -> dict[str, int]:
    """Waiting requests per model."""
    return {name: model.queue_depth for name, model in dispatcher.statistics().scheduler.models.items()}


async def entered(session: GateSession) -> None:
    """Return once a run is on the device."""
    assert await asyncio.to_thread(session.entered.wait, LIMIT_SECONDS)


def test_requests_run_one_at_a_time_oldest_first_and_each_gets_its_own_answer() -> None:
    """Requests queued behind a run are run in the order of their arrival, each answered with its own data."""

    async def scenario() -> tuple[list[int], list[int]]:
        session = GateSession()
        async with running(MonotonicClock()) as dispatcher:
            calls = [asyncio.create_task(dispatcher.infer(job(session, number))) for number in range(50)]
            await entered(session)
            session.gate.set()
            replies = await asyncio.gather(*calls)
        return session.ran, [int(reply.outputs[0].data[0]) for reply in replies]

    ran, answered = asyncio.run(scenario())

    assert ran == list(range(50))
    assert answered == list(range(50))


def test_a_request_beyond_the_queue_bound_is_refused_at_once_and_the_bound_is_per_model() -> None:
    """The queue bound counts waiting requests of one model; another model's queue is not affected."""

    async def scenario() -> dict[str, int]:
        session = GateSession()
        async with running(MonotonicClock(), depth=2) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            waiting = [asyncio.create_task(dispatcher.infer(job(session, number))) for number in (1, 2)]
            other = asyncio.create_task(dispatcher.infer(job(session, 3, model="other")))
            await asyncio.sleep(0)
            with pytest.raises(ResourceExhausted, match="max_queue_depth"):
                await dispatcher.infer(job(session, 4))
            depths = queue_depths(dispatcher)
            session.gate.set()
            await asyncio.gather(first, other, *waiting)
            assert queue_depths(dispatcher) == {"m": 0, "other": 0, "rows": 0}
        return depths

    assert asyncio.run(scenario()) == {"m": 2, "other": 1, "rows": 0}


def test_a_cancelled_request_leaves_its_queue_and_never_runs() -> None:
    """Cancelling the caller of a queued request gives its place back and costs no device time."""

    async def scenario() -> list[int]:
        session = GateSession()
        async with running(MonotonicClock(), depth=1) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            cancelled = asyncio.create_task(dispatcher.infer(job(session, 1)))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            last = asyncio.create_task(dispatcher.infer(job(session, 2)))
            await asyncio.sleep(0)
            session.gate.set()
            await asyncio.gather(first, last)
        return session.ran

    assert asyncio.run(scenario()) == [0, 2]


def test_a_request_whose_deadline_passed_in_the_queue_never_runs() -> None:
    """The deadline is checked when the device is free, before any work."""

    async def scenario() -> list[int]:
        session, clock = GateSession(), ManualClock()
        async with running(clock) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            late = asyncio.create_task(dispatcher.infer(job(session, 1, deadline_ns=clock.now_ns() + NS_PER_SECOND)))
            in_time = asyncio.create_task(
                dispatcher.infer(job(session, 2, deadline_ns=clock.now_ns() + 3 * NS_PER_SECOND))
            )
            await asyncio.sleep(0)
            clock.advance(2)
            session.gate.set()
            with pytest.raises(DeadlineExceeded):
                await late
            await asyncio.gather(first, in_time)
        return session.ran

    assert asyncio.run(scenario()) == [0, 2]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InvalidArgument("index out of range"), InvalidArgument), (ZeroDivisionError("boom"), Internal)],
)
def test_a_failing_run_fails_its_own_request_and_the_thread_goes_on(
    error: Exception, expected: type[Exception]
) -> None:
    """Whatever a run raises reaches its caller as a NodeError; the next request is served."""

    async def scenario() -> int:
        session = GateSession()
        session.gate.set()
        async with running(MonotonicClock()) as dispatcher:
            session.error = error
            with pytest.raises(expected):
                await dispatcher.infer(job(session, 0))
            session.error = None
            reply = await dispatcher.infer(job(session, 1))
        return int(reply.outputs[0].data[0])

    assert asyncio.run(scenario()) == 1


def test_a_run_past_its_limit_is_answered_and_so_is_everybody_behind_it() -> None:
    """Abandoning a run answers its caller INTERNAL and the queue UNAVAILABLE; nothing more is accepted."""

    async def scenario() -> None:
        session = GateSession()
        async with running(MonotonicClock()) as dispatcher:
            stuck = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            behind = asyncio.create_task(dispatcher.infer(job(session, 1)))
            await asyncio.sleep(0)
            assert dispatcher.statistics().busy_since_ns is not None
            dispatcher.abandon_run("the run exceeded 30 s")
            with pytest.raises(Internal, match="exceeded 30 s"):
                await stuck
            with pytest.raises(Unavailable):
                await behind
            with pytest.raises(Unavailable):
                await dispatcher.infer(job(session, 2))
            session.gate.set()

    asyncio.run(scenario())


def test_a_command_runs_before_waiting_requests_and_its_error_reaches_its_caller() -> None:
    """Commands go first, on the same thread, so that nothing else touches a session."""

    async def scenario() -> list[str]:
        session, order = GateSession(), []
        async with running(MonotonicClock()) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            second = asyncio.create_task(dispatcher.infer(job(session, 1)))
            await asyncio.sleep(0)
            command = asyncio.create_task(dispatcher.call(lambda: order.append(f"{session.ran}")))
            failing = asyncio.create_task(dispatcher.call(lambda: 1 // 0))
            await asyncio.sleep(0)
            session.gate.set()
            await asyncio.gather(first, second, command)
            with pytest.raises(ZeroDivisionError):
                await failing
        return order

    assert asyncio.run(scenario()) == ["[0]"]


def test_counters_add_up_per_model() -> None:
    """Executions, requests, rows and waits are counted per model."""

    async def scenario() -> None:
        session = GateSession()
        session.gate.set()
        async with running(MonotonicClock()) as dispatcher:
            for number in range(3):
                await dispatcher.infer(job(session, number))
            await dispatcher.infer(job(session, 9, model="other"))
            statistics = dispatcher.statistics()
        model = statistics.scheduler.models["m"]
        assert (statistics.counters["m"].executions, model.requests, model.rows) == (3, 3, 3)
        assert len(model.waits_ns) == 3
        assert statistics.counters["other"].executions == 1

    asyncio.run(scenario())


class PickySession(GateSession):
    """Refuses any run that has a 13 in it; otherwise echoes all rows, whatever their number."""

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Wait for the gate, look for a 13, echo."""
        self.entered.set()
        assert self.gate.wait(LIMIT_SECONDS)
        self.ran.append(len(inputs[0].data))
        if 13 in inputs[0].data:
            raise InvalidArgument("13 is out of range")
        return [NamedTensor(name, "INT64", inputs[0].data) for name in outputs]


def row_job(session: GateSession, number: int) -> Job:
    """A job of one row of a model that coalesces."""
    return replace(job(session, number, model="rows"), axis=0)


def test_requests_that_wait_share_an_execution_and_get_their_own_rows() -> None:
    """What has queued up behind a run goes in one; each caller gets its own number back."""

    async def scenario() -> tuple[list[int], list[list[int]]]:
        session = PickySession()
        async with running(MonotonicClock()) as dispatcher:
            calls = [asyncio.create_task(dispatcher.infer(row_job(session, 0)))]
            await entered(session)
            calls += [asyncio.create_task(dispatcher.infer(row_job(session, number))) for number in range(20, 30)]
            await asyncio.sleep(0)
            session.gate.set()
            replies = await asyncio.gather(*calls)
        return session.ran, [reply.outputs[0].data.tolist() for reply in replies]

    ran, answered = asyncio.run(scenario())

    assert ran == [1, 10]
    assert answered == [[0], *([number] for number in range(20, 30))]


def test_one_bad_request_spoils_none_of_its_neighbours() -> None:
    """When the joined run fails, its members run once each: one error, the others their answers."""

    async def scenario() -> tuple[list[int], list[object]]:
        session = PickySession()
        async with running(MonotonicClock()) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(row_job(session, 0)))
            await entered(session)
            calls = [asyncio.create_task(dispatcher.infer(row_job(session, number))) for number in range(10, 18)]
            await asyncio.sleep(0)
            session.gate.set()
            await first
            replies = await asyncio.gather(*calls, return_exceptions=True)
        return session.ran, [r if isinstance(r, BaseException) else r.outputs[0].data.tolist() for r in replies]

    ran, answered = asyncio.run(scenario())

    assert ran == [1, 8, *[1] * 8]
    assert isinstance(answered.pop(3), InvalidArgument)
    assert answered == [[number] for number in range(10, 18) if number != 13]


def test_a_renamed_model_takes_its_queue_along_and_that_of_the_name_it_takes_over() -> None:
    """Both are answered; what does not fit into the bounded queue is RESOURCE_EXHAUSTED."""

    async def scenario() -> None:
        session = GateSession()
        async with running(MonotonicClock(), depth=2) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            moved = asyncio.create_task(dispatcher.infer(job(session, 1)))
            taken_over = [asyncio.create_task(dispatcher.infer(job(session, it, model="other"))) for it in (2, 3)]
            await asyncio.sleep(0)
            dispatcher.rename_model("m", "other")
            assert queue_depths(dispatcher) == {"other": 2, "rows": 0}
            with pytest.raises(ResourceExhausted):
                await taken_over[1]
            session.gate.set()
            await asyncio.gather(first, moved, taken_over[0])
        assert session.ran == [0, 1, 2]

    asyncio.run(scenario())


def test_a_removed_model_answers_its_queue_and_takes_no_more() -> None:
    """UNAVAILABLE for who waits; the run on the device ends well."""

    async def scenario() -> None:
        session = GateSession()
        async with running(MonotonicClock()) as dispatcher:
            first = asyncio.create_task(dispatcher.infer(job(session, 0)))
            await entered(session)
            waits = asyncio.create_task(dispatcher.infer(job(session, 1)))
            await asyncio.sleep(0)
            dispatcher.remove_model("m")
            with pytest.raises(Unavailable, match="unloaded"):
                await waits
            session.gate.set()
            assert len((await first).outputs) == 1
            assert "m" not in queue_depths(dispatcher)

    asyncio.run(scenario())


@pytest.mark.parametrize("leave", [False, True], ids=["answered", "the caller goes away"])
def test_a_retired_session_is_closed_after_its_last_request_and_not_under_a_run(*, leave: bool) -> None:
    """Whoever waited for the run may be gone: the device is what counts."""

    async def scenario() -> None:
        session = GateSession()
        async with running(MonotonicClock()) as dispatcher:
            calls = [asyncio.create_task(dispatcher.infer(job(session, number))) for number in (0, 1)]
            await entered(session)
            dispatcher.retire(session)
            if leave:
                for call in calls:
                    call.cancel()
            await dispatcher_turn()
            assert session.closed_after is None
            session.gate.set()
            await asyncio.gather(*calls, return_exceptions=True)
            await dispatcher.call(lambda: None)
            assert session.closed_after == (1 if leave else 2)

    async def dispatcher_turn() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_retired_session_that_nobody_uses_is_closed_at_once() -> None:
    """In the next turn of the dispatch thread."""

    async def scenario() -> None:
        session = GateSession()
        async with running(MonotonicClock()) as dispatcher:
            dispatcher.retire(session)
            await dispatcher.call(lambda: None)
            assert session.closed_after == 0

    asyncio.run(scenario())
