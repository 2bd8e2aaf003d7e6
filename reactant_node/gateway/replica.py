"""One incarnation of a worker, as the gateway sees it: its channel, and the calls on it.

A worker that was restarted is another replica with a new channel: nothing of the dead one's connection state or
back-off is inherited. A replica that is taken out of routing is retired and closes once its last call has ended,
because the worker may be finishing those on its way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import DeadlineExceeded, Unavailable
from reactant_node.gateway.observe import Recorder
from reactant_node.transport.interface import Buffer, Channel

Metadata = Sequence[tuple[str, str | bytes]]


class Replica:
    """A channel to one worker and what is in flight on it. All state belongs to the gateway's loop.

    Args:
        name: the worker's.
        channel: to its gRPC port; closed by this object.
        streams: ModelInfer calls sent to it at once; more wait here (GW-12).
        recorder: told how long each call took; its clock is that of the deadlines.
    """

    def __init__(self, name: str, channel: Channel, *, streams: int, recorder: Recorder) -> None:
        self.name = name
        self.outstanding = 0
        self.retired = False
        self._channel = channel
        self._streams = asyncio.Semaphore(streams)
        self._recorder, self._clock = recorder, recorder.clock
        self._idle = asyncio.Event()
        self._idle.set()

    async def infer(self, method: str, message: Buffer, *, deadline_ns: int, metadata: Metadata) -> bytes:
        """A call that takes one of the streams, waiting for it within its deadline.

        Raises:
            NodeError: as the worker answered; `Unavailable` where it is gone; `DeadlineExceeded`.
        """
        with self._counted():
            async with self._stream(deadline_ns):
                return await self._call(method, message, deadline_ns, metadata)

    async def ask(self, method: str, message: Buffer, *, deadline_ns: int, metadata: Metadata = ()) -> bytes:
        """A call about the worker or a model, which never waits behind inferences. Raises as `infer`."""
        with self._counted():
            return await self._call(method, message, deadline_ns, metadata)

    def retire(self) -> None:
        """Take no new call; those in flight go on."""
        self.retired = True

    async def close_when_idle(self) -> None:
        """Close the channel once the last call has ended, or this task is cancelled."""
        try:
            await self._idle.wait()
        finally:
            await self._channel.close()

    async def close(self) -> None:
        """Close now; calls in flight raise `Unavailable`."""
        self.retired = True
        await self._channel.close()

    def __repr__(self) -> str:
        return f"<Replica {self.name} {'retired' if self.retired else 'in use'}, {self.outstanding} calls>"

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.outstanding += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.outstanding -= 1
            if not self.outstanding:
                self._idle.set()

    @asynccontextmanager
    async def _stream(self, deadline_ns: int) -> AsyncIterator[None]:
        if self._streams.locked():
            await self._wait_for_stream(deadline_ns)
        else:
            await self._streams.acquire()  # does not wait
        try:
            yield
        finally:
            self._streams.release()

    async def _wait_for_stream(self, deadline_ns: int) -> None:
        try:
            async with asyncio.timeout(self._seconds_to(deadline_ns)):
                await self._streams.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the deadline passed while all streams to {self.name} were busy") from error

    async def _call(self, method: str, message: Buffer, deadline_ns: int, metadata: Metadata) -> bytes:
        if self.retired:  # while this call waited for a stream
            raise Unavailable(f"{self.name} is gone")
        if self._seconds_to(deadline_ns) <= 0:
            raise DeadlineExceeded("the deadline has passed")
        started_ns = self._clock.now_ns()
        try:
            return await self._channel.call(method, message, deadline_ns=deadline_ns, metadata=metadata)
        finally:
            seconds = (self._clock.now_ns() - started_ns) / NS_PER_SECOND
            self._recorder.record_worker_call(method.rpartition("/")[2], self.name, seconds)

    def _seconds_to(self, deadline_ns: int) -> float:
        return (deadline_ns - self._clock.now_ns()) / NS_PER_SECOND
