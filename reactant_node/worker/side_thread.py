"""A thread beside the loop and the device, for what may take long and is nobody's request: polls and compiles.

asyncio's own threads will not do: a process that ends waits for them, and a poll of a file server that has gone
or a compile of minutes would hold up the end of the worker.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_Work = tuple["Future[Any]", Callable[[], Any]]


class SideThread:
    """Does one thing after the other, in the order of the calls. Ends with the process at the latest."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"<SideThread {self._thread.name}, {self._work.qsize()} waiting>"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def call(self, work: Callable[[], T]) -> T:
        """Do something there; its result, or what it raised. What has begun goes on when the caller is cancelled."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return await asyncio.wrap_future(future)

    def stop(self, timeout_seconds: float) -> None:
        """Take nothing more on; wait that long for what goes on."""
        self._work.put(None)
        self._thread.join(timeout_seconds)

    def _main(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
                future.set_exception(error)
