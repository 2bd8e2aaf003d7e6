"""A thread beside the loop: one thing after the other, results and errors to whoever waits, no end held up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from reactant_node.worker.side_thread import SideThread

LIMIT_SECONDS = 20.0


def test_work_is_done_in_order_on_one_other_thread() -> None:
    """Each caller gets its own result."""

    async def scenario() -> list[tuple[int, int]]:
        side = SideThread("side")
        side.start()
        done: list[int] = []

        def work(number: int) -> tuple[int, int]:
            done.append(number)
            return number, threading.get_ident()

        results = await asyncio.gather(*(side.call(lambda number=number: work(number)) for number in range(20)))  # type: ignore[misc]
        assert done == list(range(20))
        side.stop(LIMIT_SECONDS)
        assert repr(side) == "<SideThread side, 0 waiting>"
        return list(results)

    results = asyncio.run(scenario())
    assert [number for number, _ in results] == list(range(20))
    (thread,) = {thread for _, thread in results}
    assert thread != threading.get_ident()


def test_what_work_raises_is_raised_where_it_is_awaited_and_the_thread_goes_on() -> None:
    """Nothing else is affected."""

    async def scenario() -> None:
        side = SideThread("side")
        side.start()
        with pytest.raises(ZeroDivisionError):
            await side.call(lambda: 1 // 0)
        assert await side.call(lambda: 7) == 7
        side.stop(LIMIT_SECONDS)

    asyncio.run(scenario())


def test_a_stop_does_not_wait_longer_than_it_is_told_and_cancelled_work_is_not_begun() -> None:
    """What has begun goes on to its end."""

    async def scenario() -> None:
        side, gate, begun = SideThread("side"), threading.Event(), list[str]()
        side.start()
        first = asyncio.create_task(side.call(gate.wait))
        second = asyncio.create_task(side.call(lambda: begun.append("second")))
        await asyncio.sleep(0)  # both are on their way
        second.cancel()
        await asyncio.wait({second})
        side.stop(0.01)
        gate.set()
        assert await first
        side.stop(LIMIT_SECONDS)
        assert begun == []

    asyncio.run(scenario())
