"""Workers are asked when there is news, and the table follows their answers."""

from __future__ import annotations

import asyncio

import pytest

from reactant_node.gateway import discovery as module
from reactant_node.gateway.table import RoutingTable
from tests.support.clock import ManualClock
from tests.support.gateway_workers import ScriptedWorker, SmallGateway, entry, until


def test_a_worker_is_asked_as_soon_as_it_is_there() -> None:
    """No round has to come by: its models are routed to at once."""

    async def run() -> RoutingTable:
        gateway = SmallGateway()
        assert gateway.discovery.table == RoutingTable()
        gateway.add(ScriptedWorker("a", "m"))
        await until(lambda: gateway.discovery.table.ready)
        assert repr(gateway.discovery) == "<Discovery generation 1: 1 workers, 1 models; 1 known>"
        return gateway.discovery.table

    assert dict(asyncio.run(run()).replicas) == {"m": ("a",)}


def test_a_worker_that_is_gone_leaves_the_table_at_once() -> None:
    """Nothing is awaited in between: the next request cannot meet it."""

    async def run() -> None:
        gateway = await SmallGateway(ScriptedWorker("a", "m"), ScriptedWorker("b", "m")).start()
        gateway.discovery.remove("a")
        assert gateway.discovery.table.workers == ("b",)
        assert dict(gateway.discovery.table.replicas) == {"m": ("b",)}
        gateway.discovery.remove("b")
        assert not gateway.discovery.table.ready
        gateway.discovery.remove("b")
        await until(lambda: all(channel.closed for channel in gateway.channels.values()))

    asyncio.run(run())


def test_calls_in_flight_outlive_their_workers_leaving() -> None:
    """A worker that is being stopped may finish what it has; its channel closes after that."""

    async def run() -> None:
        worker = ScriptedWorker("a", "m")
        done = asyncio.Event()
        worker.infer = lambda *_: _after(done, b"finished")
        gateway = await SmallGateway(worker).start()
        call = asyncio.ensure_future(gateway.infer("m"))
        await until(lambda: worker.count("ModelInfer") == 1)
        gateway.discovery.remove("a")
        await asyncio.sleep(0)
        assert not gateway.channels["a"].closed
        done.set()
        assert await call == b"finished"
        await until(lambda: gateway.channels["a"].closed)

    asyncio.run(run())


async def _after(event: asyncio.Event, reply: bytes) -> bytes:
    await event.wait()
    return reply


def test_news_of_one_worker_does_not_wait_for_another_that_hangs() -> None:
    """The table is replaced per answer, not per round."""

    async def run() -> None:
        clock = ManualClock()
        slow, quick = ScriptedWorker("a", "m"), ScriptedWorker("b", "m")
        gateway = await SmallGateway(slow, quick, clock=clock).start()
        gateway.channels["a"].silent = True
        quick.rows.append(entry("new"))
        clock.advance(1)
        gateway.discovery.request_refresh()
        await until(lambda: "new" in gateway.discovery.table.replicas)
        assert gateway.discovery.table.workers == ("a", "b")
        await gateway.discovery.close()

    asyncio.run(run())


def test_a_worker_that_fails_a_probe_leaves_and_comes_back() -> None:
    """It is out after one failed probe and in after one that succeeds, on the same channel."""

    async def run() -> None:
        clock = ManualClock()
        gateway = await SmallGateway(ScriptedWorker("a", "m"), ScriptedWorker("b", "m"), clock=clock).start()
        channel = gateway.channels["a"]
        channel.break_off()
        clock.advance(1)
        await gateway.discovery.refresh()
        assert list(gateway.discovery.table.workers) == ["b"]
        assert set(gateway.discovery.replicas) == {"a", "b"}
        channel.mend()
        clock.advance(1)
        await gateway.discovery.refresh()
        assert list(gateway.discovery.table.workers) == ["a", "b"]
        assert gateway.channels["a"] is channel
        assert not channel.closed

    asyncio.run(run())


def test_concurrent_callers_share_one_round_and_there_is_one_per_second() -> None:
    """A client that asks for unknown models does not decide how often workers are asked."""

    async def run() -> None:
        clock = ManualClock()
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker, clock=clock).start()
        asked = worker.count("RepositoryIndex")
        await asyncio.gather(*(gateway.discovery.refresh() for _ in range(20)))
        await gateway.discovery.refresh()
        assert worker.count("RepositoryIndex") == asked + 1
        clock.advance(0.999)
        await gateway.discovery.refresh()
        assert worker.count("RepositoryIndex") == asked + 1
        clock.advance(0.001)
        await gateway.discovery.refresh()
        assert worker.count("RepositoryIndex") == asked + 2

    asyncio.run(run())


def test_a_caller_that_gives_up_does_not_stop_the_round_for_the_others() -> None:
    """Cancelling one waiter leaves the round running."""

    async def run() -> None:
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker).start()
        worker.rows.append(entry("new"))
        first, second = (asyncio.ensure_future(gateway.discovery.refresh()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()
        assert "new" in gateway.discovery.table.replicas

    asyncio.run(run())


def test_a_restarted_worker_is_a_new_replica() -> None:
    """It gets a new channel, and a late answer of the dead one is not taken for its own."""

    async def run() -> None:
        old = ScriptedWorker("a", "old")
        gateway = await SmallGateway(old).start()
        first = gateway.channels["a"]
        gateway.add(ScriptedWorker("a", "new"))
        await until(lambda: "new" in gateway.discovery.table.replicas)
        assert "old" not in gateway.discovery.table.listed
        assert gateway.channels["a"] is not first
        await until(lambda: first.closed)

    asyncio.run(run())


def test_the_table_changes_only_with_an_answer_that_changes() -> None:
    """The generation counts changes, not rounds."""

    async def run() -> None:
        clock = ManualClock()
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker, clock=clock).start()
        table = gateway.discovery.table
        clock.advance(1)
        await gateway.discovery.refresh()
        assert gateway.discovery.table is table
        worker.ready = False
        clock.advance(1)
        await gateway.discovery.refresh()
        assert gateway.discovery.table.generation == table.generation + 1
        assert not gateway.discovery.table.ready

    asyncio.run(run())


def test_rounds_come_by_themselves_and_sooner_while_a_worker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that could not be asked at first is asked again after `RETRY_SECONDS`, not after an interval."""
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)

    async def run() -> None:
        gateway = SmallGateway()
        gateway.add(ScriptedWorker("a", "m"))
        gateway.channels["a"].break_off()
        rounds = asyncio.ensure_future(gateway.discovery.run())
        await asyncio.sleep(0)
        assert gateway.discovery.table.workers == ()
        gateway.channels["a"].mend()
        await until(lambda: gateway.discovery.table.workers == ("a",))
        rounds.cancel()
        await gateway.discovery.close()

    asyncio.run(run())


def test_a_worker_that_answers_nonsense_does_not_answer() -> None:
    """Bytes that are no index take the worker out like silence."""

    async def run() -> None:
        clock = ManualClock()
        worker = ScriptedWorker("a", "m")
        gateway = await SmallGateway(worker, clock=clock).start()

        gateway.channels["a"].nonsense = True
        clock.advance(1)
        await gateway.discovery.refresh()
        assert gateway.discovery.table.workers == ()

    asyncio.run(run())
