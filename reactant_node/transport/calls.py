"""The server's side of every call, whatever carries it: admission, drain, and what a handler's end means.

A call is admitted when its headers arrive and released when its reply has left, so that one whose upload began
before a drain is still served, and an idle listener owes nobody an answer. What ends a handler:

    returns         its buffers are the reply
    NodeError       status and message go to the caller
    cancelled       by the carrier, because the caller went away or its time is over: nobody waits for an answer;
                    by `abandon`, because the listener closes: UNAVAILABLE;
                    by nobody (something the handler awaited was cancelled): UNAVAILABLE
    anything else   a defect of ours: logged with its traceback, INTERNAL without internals for the caller
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from reactant_node.errors import Internal, NodeError, Unavailable
from reactant_node.transport.interface import ListenerStatistics

_log = logging.getLogger(__name__)


class Calls:
    """The calls of one listener.

    Owned by the listener's event loop; `begin_drain`, `statistics` and `repr` may be used from any thread.
    """

    def __init__(self) -> None:
        self._admitted: set[asyncio.Task[object]] = set()
        self._total = 0
        self._draining = False
        self._abandoned = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        state = "closed" if self._abandoned else "draining" if self._draining else "open"
        return f"<Calls {state}, {len(self._admitted)} in flight, {self._total} in total>"

    def admit(self) -> Callable[[], None]:
        """Let the current task's call in.

        Returns:
            What to call, once, when the call's reply has left.

        Raises:
            Unavailable: no more calls are taken.
        """
        if self._draining:
            raise Unavailable("the server is shutting down and takes no new calls")
        task = _current_task()
        self._admitted.add(task)
        self._total += 1
        self._idle.clear()
        return lambda: self._release(task)

    async def run(self, method: str, work: Awaitable[bytes]) -> bytes:
        """Await an admitted call's work.

        Raises:
            NodeError: for the caller to be told.
            asyncio.CancelledError: the caller is not there any more.
        """
        try:
            return await work
        except NodeError:
            raise
        except asyncio.CancelledError as error:
            task = _current_task()
            if task.cancelling() and not self._abandoned:
                raise
            task.uncancel()
            raise Unavailable("the call was given up because the server is shutting down") from error
        except Exception as error:
            _log.exception("a call of %s failed", method)
            raise Internal("the server failed to handle the call; its log says why") from error

    def begin_drain(self) -> None:
        """Admit no more calls."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Return once no admitted call is left."""
        await self._idle.wait()

    def abandon(self) -> None:
        """Admit no more calls, and end those in flight as UNAVAILABLE."""
        self._draining = self._abandoned = True
        for task in tuple(self._admitted):
            task.cancel()

    def statistics(self) -> ListenerStatistics:
        """Counts now."""
        return ListenerStatistics(in_flight=len(self._admitted), calls_total=self._total)

    def _release(self, task: asyncio.Task[object]) -> None:
        self._admitted.discard(task)
        if not self._admitted:
            self._idle.set()


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("calls are served by tasks of an event loop")
    return task
