"""What services rely on, held by every implementation of `transport.interface`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest

from reactant_node.errors import (
    BY_STATUS,
    AddressInUse,
    DeadlineExceeded,
    Internal,
    ModelLoadError,
    NodeError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from reactant_node.transport.grpcio import GrpcTransport
from reactant_node.transport.interface import Buffer, CallContext, MessageLimits, Transport
from reactant_node.transport.memory import MemoryTransport
from tests.support.wire_calls import ECHO, LOOPBACK, WAIT, Gate, echo, in_seconds, on_loop, served

pytestmark = pytest.mark.parametrize(
    "make", [pytest.param(GrpcTransport, id="grpcio"), pytest.param(MemoryTransport, id="memory")]
)
MakeTransport = Callable[[], Transport]


@on_loop
async def test_a_message_goes_there_and_back(make: MakeTransport) -> None:
    """Any buffer is sent, the empty one too; the handler's buffers come back as one message."""
    async with served(make(), {ECHO: echo}) as (_, channel):
        for message in (b"", b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]):
            assert await channel.call(ECHO, message) == bytes(message)


@on_loop
async def test_a_handler_sees_method_metadata_deadline_and_peer(make: MakeTransport) -> None:
    """Metadata arrive as sent, text and bytes, without the transport's own headers; the deadline is absolute."""
    seen: list[CallContext] = []

    async def look(_message: bytes, context: CallContext) -> Sequence[Buffer]:
        seen.append(context)
        return []

    deadline_ns = in_seconds(100)
    async with served(make(), {ECHO: look}) as (_, channel):
        await channel.call(ECHO, b"", deadline_ns=deadline_ns, metadata=(("x-a", "1"), ("x-b-bin", b"\x00\xff")))
        await channel.call(ECHO, b"")
    with_deadline, without = seen
    assert with_deadline.method == ECHO
    assert tuple(with_deadline.metadata) == (("x-a", "1"), ("x-b-bin", b"\x00\xff"))
    assert with_deadline.deadline_ns == pytest.approx(deadline_ns, abs=2e9)
    assert (tuple(without.metadata), without.deadline_ns) == ((), None)
    assert with_deadline.peer == "127.0.0.1"


@pytest.mark.parametrize("kind", [*BY_STATUS.values(), ModelLoadError])
@on_loop
async def test_an_error_arrives_by_status_and_message(make: MakeTransport, kind: type[NodeError]) -> None:
    """A NodeError of the handler is raised at the caller: the class of its status, with its message."""

    async def fail(_message: bytes, _context: CallContext) -> Sequence[Buffer]:
        raise kind("no: 100%, «ü»\nsecond line\0.")

    async with served(make(), {ECHO: fail}) as (_, channel):
        with pytest.raises(BY_STATUS[kind.status]) as caught:
            await channel.call(ECHO, b"")
    assert type(caught.value) is BY_STATUS[kind.status]
    assert caught.value.message == "no: 100%, «ü»\nsecond line\0."


@on_loop
async def test_any_other_exception_is_internal(make: MakeTransport, caplog: pytest.LogCaptureFixture) -> None:
    """A handler's defect is INTERNAL without internals for the caller; the traceback goes to the log."""

    async def broken(_message: bytes, _context: CallContext) -> Sequence[Buffer]:
        raise ValueError("secret")

    async with served(make(), {ECHO: broken}) as (_, channel):
        with caplog.at_level(logging.ERROR), pytest.raises(Internal) as caught:
            await channel.call(ECHO, b"")
    assert "secret" not in caught.value.message
    (record,) = caplog.records
    assert ECHO in record.getMessage()
    assert "ValueError: secret" in (record.exc_text or "")


@on_loop
async def test_an_unknown_method_is_unimplemented(make: MakeTransport) -> None:
    """A path that has no route is UNIMPLEMENTED, by name."""
    async with served(make(), {ECHO: echo}) as (_, channel):
        with pytest.raises(Unimplemented, match=r"/no\.such\.Service/Method"):
            await channel.call("/no.such.Service/Method", b"")


@on_loop
async def test_a_deadline_ends_the_call_and_its_handler(make: MakeTransport) -> None:
    """When the time is over the caller is told, and the handler's task is cancelled."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (listener, channel):
        with pytest.raises(DeadlineExceeded):
            await channel.call(WAIT, b"", deadline_ns=in_seconds(0.05))
        await gate.wait_for(cancelled=gate.entered)
        await listener.wait_idle()


@on_loop
async def test_a_deadline_that_has_passed_sends_nothing(make: MakeTransport) -> None:
    """A call whose time is over before it begins does not reach the handler."""
    async with served(make(), {ECHO: echo}) as (listener, channel):
        with pytest.raises(DeadlineExceeded):
            await channel.call(ECHO, b"", deadline_ns=in_seconds(-1))
        assert listener.statistics().calls_total == 0


@on_loop
async def test_a_cancelled_caller_cancels_the_handler(make: MakeTransport) -> None:
    """Cancelling the calling task raises CancelledError there, and cancels the handler's task."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (listener, channel):
        caller = asyncio.create_task(channel.call(WAIT, b""))
        await gate.wait_for(entered=1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await gate.wait_for(cancelled=1)
        await listener.wait_idle()
        gate.open()
        assert await channel.call(WAIT, b"again") == b"again"


@on_loop
async def test_what_a_handler_awaits_may_be_cancelled(make: MakeTransport) -> None:
    """A CancelledError that nobody meant for the call is answered: the caller never hangs."""

    async def depends(_message: bytes, _context: CallContext) -> Sequence[Buffer]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return []

    async with served(make(), {ECHO: depends}) as (_, channel):
        with pytest.raises(Unavailable):
            await channel.call(ECHO, b"", deadline_ns=in_seconds(5))


@on_loop
async def test_message_limits_hold_each_way_on_each_side(make: MakeTransport) -> None:
    """A message of exactly the limit passes; one byte more is RESOURCE_EXHAUSTED and names the limit."""
    at_limit, over = bytes(1000), bytes(1001)
    sides = {
        "request, receiver": (MessageLimits(receive_bytes=1000), MessageLimits()),
        "reply, sender": (MessageLimits(send_bytes=1000), MessageLimits()),
        "request, sender": (MessageLimits(), MessageLimits(send_bytes=1000)),
        "reply, receiver": (MessageLimits(), MessageLimits(receive_bytes=1000)),
    }
    for listener_limits, channel_limits in sides.values():
        async with served(make(), {ECHO: echo}, listener_limits, channel_limits) as (_, channel):
            with pytest.raises(ResourceExhausted, match=r"1001 bytes.*1000"):
                await channel.call(ECHO, over)
            assert await channel.call(ECHO, at_limit) == at_limit


@on_loop
async def test_a_port_is_never_shared(make: MakeTransport) -> None:
    """A second listener on a port fails, by name, and the first one keeps every call."""
    transport = make()
    first = transport.listen(LOOPBACK, {ECHO: echo})
    address = await first.start()
    with pytest.raises(AddressInUse, match=str(address)):
        await transport.listen(address, {}).start()
    channel = transport.dial(address)
    assert await channel.call(ECHO, b"x") == b"x"
    await channel.close()
    await first.close()


@on_loop
async def test_a_closed_port_can_be_listened_on_again(make: MakeTransport) -> None:
    """After close the port is free at once, and a channel that knew the old listener finds the new one."""
    transport = make()
    first = transport.listen(LOOPBACK, {ECHO: echo})
    address = await first.start()
    channel = transport.dial(address)
    assert await channel.call(ECHO, b"1") == b"1"
    await first.close()
    with pytest.raises(Unavailable):
        await channel.call(ECHO, b"2")
    second = transport.listen(address, {ECHO: echo})
    assert await second.start() == address
    assert await _call_until_available(lambda: channel.call(ECHO, b"3")) == b"3"
    await channel.close()
    await second.close()


async def _call_until_available(call: Callable[[], Awaitable[bytes]]) -> bytes:
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.02)


@on_loop
async def test_nobody_there_is_unavailable_at_once(make: MakeTransport) -> None:
    """A call to a port that nobody listens on fails, naming the address, without waiting for the deadline."""
    transport = make()
    listener = transport.listen(LOOPBACK, {})
    address = await listener.start()
    await listener.close()
    channel = transport.dial(address)
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"{address} is gone: connection refused"):
            await channel.call(ECHO, b"", deadline_ns=in_seconds(1000))
    await channel.close()


@on_loop
async def test_draining_finishes_what_is_in_and_takes_no_more(make: MakeTransport) -> None:
    """After begin_drain new calls are UNAVAILABLE, those in flight are answered, and then the listener is idle."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (listener, channel):
        accepted = [asyncio.create_task(channel.call(WAIT, b"%d" % index)) for index in range(5)]
        await gate.wait_for(entered=5)
        listener.begin_drain()
        with pytest.raises(Unavailable, match="shutting down"):
            await channel.call(WAIT, b"late")
        idle = asyncio.create_task(listener.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        assert listener.statistics().in_flight == 5
        gate.open()
        assert await asyncio.gather(*accepted) == [b"%d" % index for index in range(5)]
        await idle
        assert (listener.statistics().in_flight, listener.statistics().calls_total) == (0, 5)


@on_loop
async def test_an_idle_listener_is_idle_at_once(make: MakeTransport) -> None:
    """wait_idle returns where there is nothing to wait for, before and after calls."""
    async with served(make(), {ECHO: echo}) as (listener, channel):
        await listener.wait_idle()
        await channel.call(ECHO, b"")
        await listener.wait_idle()


@on_loop
async def test_closing_a_listener_answers_what_is_in_flight(make: MakeTransport) -> None:
    """Close ends the handlers and their callers get UNAVAILABLE; closing twice is no matter."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (listener, channel):
        callers = [asyncio.create_task(channel.call(WAIT, b"")) for _ in range(3)]
        await gate.wait_for(entered=3)
        await listener.close()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
        assert gate.cancelled == 3
        await listener.close()


@on_loop
async def test_closing_a_channel_ends_its_calls(make: MakeTransport) -> None:
    """Calls in flight, and later ones, raise Unavailable; the handler is cancelled."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (_, channel):
        caller = asyncio.create_task(channel.call(WAIT, b""))
        await gate.wait_for(entered=1)
        await channel.close()
        with pytest.raises(Unavailable, match="was closed"):
            await caller
        with pytest.raises(Unavailable, match="was closed"):
            await channel.call(WAIT, b"")
        await gate.wait_for(cancelled=1)


@on_loop
async def test_many_calls_share_a_channel(make: MakeTransport) -> None:
    """Calls of one channel run side by side and do not mix up their answers."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (_, channel):
        callers = [asyncio.create_task(channel.call(WAIT, b"%d" % index)) for index in range(200)]
        await gate.wait_for(entered=200)
        gate.open()
        assert await asyncio.gather(*callers) == [b"%d" % index for index in range(200)]


@on_loop
async def test_a_live_object_says_what_it_is(make: MakeTransport) -> None:
    """Repr shows address, state and calls in flight."""
    gate = Gate()
    async with served(make(), {WAIT: gate}) as (listener, channel):
        caller = asyncio.create_task(channel.call(WAIT, b""))
        await gate.wait_for(entered=1)
        assert "open, 1 in flight" in repr(listener)
        assert "open, 1 in flight" in repr(channel)
        listener.begin_drain()
        assert "draining, 1 in flight" in repr(listener)
        gate.open()
        await caller
        await channel.close()
        assert "closed, 0 in flight" in repr(channel)
