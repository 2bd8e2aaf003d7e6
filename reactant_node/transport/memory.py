"""The transport's double: calls within one event loop, for tests of whole nodes.

It keeps the contract of `grpcio.py`, which the tests hold both to: deadlines, cancellation in both directions,
message limits, drain, a port that is taken, a peer that is gone. As over a wire, only bytes, metadata, deadline, status
and message get across: no object of one side is seen by the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from reactant_node.errors import (
    AddressInUse,
    DeadlineExceeded,
    NodeError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    from_status,
)
from reactant_node.transport.calls import Calls
from reactant_node.transport.interface import (
    Address,
    Buffer,
    CallContext,
    Channel,
    Listener,
    ListenerStatistics,
    MessageLimits,
    Routes,
)
from reactant_node.transport.limits import checked_request, joined_reply, remaining_seconds

_FIRST_EPHEMERAL_PORT = 49152

_CLOSE_SECONDS = 1.0
"""What handlers that have been cancelled get to end."""


class MemoryTransport:
    """A network of its own: listeners by port, whatever their host. Owned by one event loop.

    Args:
        peer: where its channels say they call from.
    """

    def __init__(self, peer: str = "127.0.0.1") -> None:
        self._listeners: dict[int, MemoryListener] = {}
        self._peer = peer

    def __repr__(self) -> str:
        return f"<MemoryTransport ports {sorted(self._listeners)}>"

    def listen(self, address: Address, routes: Routes, limits: MessageLimits = MessageLimits()) -> Listener:  # noqa: B008 - frozen
        """A server, not yet started."""
        return MemoryListener(self._listeners, address, routes, limits)

    def dial(self, address: Address, limits: MessageLimits = MessageLimits()) -> Channel:  # noqa: B008 - frozen
        """A channel, which looks for its listener at each call."""
        return MemoryChannel(self._listeners, address, limits, self._peer)


@dataclass(frozen=True, slots=True)
class MemoryCallContext:
    """One call, seen from its handler; see `interface.CallContext`."""

    method: str
    metadata: Sequence[tuple[str, str | bytes]]
    deadline_ns: int | None
    peer: str


class MemoryListener:
    """A server; see `interface.Listener`."""

    def __init__(
        self, listeners: dict[int, MemoryListener], address: Address, routes: Routes, limits: MessageLimits
    ) -> None:
        self._listeners = listeners
        self._address = address
        self._routes = routes
        self._limits = limits
        self._calls = Calls()

    def __repr__(self) -> str:
        return f"<MemoryListener {self._address} {self._calls!r}>"

    async def start(self) -> Address:
        """See `interface.Listener.start`."""
        if self._address.port in self._listeners:
            raise AddressInUse(f"{self._address} is in use by {self._listeners[self._address.port]!r}")
        free = (port for port in itertools.count(_FIRST_EPHEMERAL_PORT) if port not in self._listeners)
        port = self._address.port or next(free)
        self._address = Address(self._address.host, port)
        self._listeners[port] = self
        return self._address

    def begin_drain(self) -> None:
        """See `interface.Listener.begin_drain`."""
        self._calls.begin_drain()

    async def wait_idle(self) -> None:
        """See `interface.Listener.wait_idle`."""
        await self._calls.wait_idle()

    async def close(self) -> None:
        """See `interface.Listener.close`."""
        if self._listeners.get(self._address.port) is self:
            del self._listeners[self._address.port]
        self._calls.abandon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._calls.wait_idle()

    def statistics(self) -> ListenerStatistics:
        """See `interface.Listener.statistics`."""
        return self._calls.statistics()

    async def serve(self, message: bytes, context: CallContext) -> bytes:
        """Run one call in the current task, as its carrier.

        Raises:
            NodeError: what the caller is to be told.
        """
        if context.method not in self._routes:
            raise Unimplemented(f"method {context.method} is not served here")
        release = self._calls.admit()
        try:
            return await self._calls.run(context.method, self._exchange(message, context))
        finally:
            release()

    async def _exchange(self, message: bytes, context: CallContext) -> bytes:
        if len(message) > self._limits.receive_bytes:
            limit = self._limits.receive_bytes
            raise ResourceExhausted(f"the request has {len(message)} bytes; the limit is {limit}")
        return joined_reply(await self._routes[context.method](message, context), self._limits.send_bytes)


class MemoryChannel:
    """A client; see `interface.Channel`."""

    def __init__(
        self, listeners: dict[int, MemoryListener], address: Address, limits: MessageLimits, peer: str
    ) -> None:
        self._listeners = listeners
        self._peer = peer
        self._address = address
        self._limits = limits
        self._in_flight: set[asyncio.Task[bytes]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<MemoryChannel {self._address} {state}, {len(self._in_flight)} in flight>"

    async def call(
        self,
        method: str,
        message: Buffer,
        *,
        deadline_ns: int | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """See `interface.Channel.call`."""
        request = checked_request(message, self._limits.send_bytes)
        timeout = remaining_seconds(deadline_ns)
        listener = self._reached()
        context = MemoryCallContext(method, tuple(metadata), deadline_ns, self._peer)
        served = asyncio.create_task(listener.serve(request, context))
        served.add_done_callback(_retrieve)
        self._in_flight.add(served)
        try:
            # The handler has its own task, as it would in another process: ours is cancelled without it noticing.
            await asyncio.wait({served}, timeout=timeout)
            return self._reply(served)
        finally:
            self._in_flight.discard(served)
            served.cancel()

    async def close(self) -> None:
        """See `interface.Channel.close`."""
        self._closed = True
        for served in tuple(self._in_flight):
            served.cancel()

    def _reached(self) -> MemoryListener:
        if self._closed:
            raise Unavailable(f"the connection to {self._address} was closed")
        try:
            return self._listeners[self._address.port]
        except KeyError:
            raise Unavailable(f"{self._address} is gone: connection refused") from None

    def _reply(self, served: asyncio.Task[bytes]) -> bytes:
        if not served.done():
            raise DeadlineExceeded(f"{self._address} did not answer in time")
        try:
            reply = served.result()
        except asyncio.CancelledError:
            raise Unavailable(f"the connection to {self._address} was closed") from None
        except NodeError as error:
            raise from_status(error.status, error.message) from None
        limit = self._limits.receive_bytes
        if len(reply) > limit:
            raise ResourceExhausted(f"the reply has {len(reply)} bytes; the limit is {limit}")
        return reply


def _retrieve(served: asyncio.Task[bytes]) -> None:
    """Look at a call's end, since a caller that has gone does not and asyncio would complain."""
    if not served.cancelled():
        served.exception()
