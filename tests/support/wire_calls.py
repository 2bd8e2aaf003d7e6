"""Asynchronous tests of transports: one loop a test, a bound on its time, and a server to call."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from reactant_node.transport.interface import (
    Address,
    Buffer,
    CallContext,
    Channel,
    Listener,
    MessageLimits,
    Routes,
    Transport,
)

ECHO = "/test.Service/Echo"
WAIT = "/test.Service/Wait"
LOOPBACK = Address("127.0.0.1", 0)


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test on a loop of its own, for at most 30 seconds."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def in_seconds(seconds: float) -> int:
    """A deadline."""
    return time.monotonic_ns() + int(seconds * 1e9)


async def echo(message: bytes, _context: CallContext) -> Sequence[Buffer]:
    """The message, in pieces."""
    half = len(message) // 2
    return [message[:half], memoryview(message)[half:]]


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds that nothing announces."""
    while not condition():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.002)


class Gate:
    """A handler that holds its calls until it is opened, and counts how they end."""

    def __init__(self) -> None:
        self.entered = 0
        self.finished = 0
        self.cancelled = 0
        self._open = asyncio.Event()
        self._changed = asyncio.Condition()

    async def __call__(self, message: bytes, _context: CallContext) -> Sequence[Buffer]:
        """Echo, once open."""
        await self._count("entered")
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            await self._count("cancelled")
            raise
        await self._count("finished")
        return [message]

    def open(self) -> None:
        """Let all calls go on, now and later."""
        self._open.set()

    async def wait_for(self, **counts: int) -> None:
        """Return once the counts named are reached."""
        async with self._changed:
            await self._changed.wait_for(lambda: all(getattr(self, name) >= count for name, count in counts.items()))

    async def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def served(
    transport: Transport,
    routes: Routes,
    limits: MessageLimits = MessageLimits(),  # noqa: B008 - frozen
    channel_limits: MessageLimits = MessageLimits(),  # noqa: B008 - frozen
) -> AsyncIterator[tuple[Listener, Channel]]:
    """A started listener and a channel to it; both are closed at the end."""
    listener = transport.listen(LOOPBACK, routes, limits)
    channel = transport.dial(await listener.start(), channel_limits)
    try:
        yield listener, channel
    finally:
        await channel.close()
        await listener.close()
