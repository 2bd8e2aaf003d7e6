"""What is particular to gRPC by grpcio: address families, foreign clients, its own failures, threads and processes."""

from __future__ import annotations

import asyncio
import collections
import logging
import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from reactant_node.errors import (
    AddressInUse,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    NodeError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from reactant_node.transport.grpcio import GrpcChannel, GrpcTransport
from reactant_node.transport.interface import Address, Buffer, CallContext, MessageLimits, Routes
from tests.support.wire_calls import ECHO, LOOPBACK, WAIT, echo, in_seconds, needs_ipv6, on_loop, served, until

CONNECTING = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1:"
OVERSIZE = "Received message larger than max (9 vs. 4)"
ROOT = Path(__file__).parents[2]


@needs_ipv6
@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
@on_loop
async def test_a_wildcard_serves_both_families(wildcard: str) -> None:
    """Either wildcard answers on 127.0.0.1, on ::1 and under the name of both."""
    transport = GrpcTransport()
    listener = transport.listen(Address(wildcard, 0), {ECHO: echo})
    port = (await listener.start()).port
    for host in ("127.0.0.1", "::1", "localhost"):
        channel = transport.dial(Address(host, port))
        assert await channel.call(ECHO, host.encode()) == host.encode()
        await channel.close()
    await listener.close()


@needs_ipv6
@on_loop
async def test_a_port_taken_on_one_family_is_not_half_served() -> None:
    """Where another program has the port on ::1 only, a wildcard listener fails instead of serving IPv4 alone."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            await GrpcTransport().listen(Address("0.0.0.0", port), {}).start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("message", ["ü" * 100_000, "x" * 100_000, "a" + "ü" * 600, "short \udc80"])
@on_loop
async def test_a_long_status_message_arrives_cut(message: str) -> None:
    """A message too long for a header, or one that UTF-8 cannot write, arrives as far as it can, between characters."""

    async def fail(_message: bytes, _context: CallContext) -> Sequence[Buffer]:
        raise NotFound(message)

    async with served(GrpcTransport(), {ECHO: fail}) as (_, channel):
        with pytest.raises(NotFound) as caught:
            await channel.call(ECHO, b"")
    arrived = caught.value.message
    assert len(arrived.encode()) <= 1024
    assert arrived == "short ?" or (arrived.endswith("...") and message.startswith(arrived[:-3]) and len(arrived) > 500)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("X-Upper", "1"), "metadata key 'X-Upper'"),
        (("grpc-timeout", "1S"), "metadata key 'grpc-timeout'"),
        (("x-bin", "text"), "bytes travel under keys that end in -bin"),
        (("x", b"bytes"), "bytes travel under keys that end in -bin"),
        (("x", "ü"), "printable ASCII"),
        (("x", "a\nb"), "printable ASCII"),
    ],
)
@on_loop
async def test_metadata_that_cannot_travel_are_refused(pair: tuple[str, str | bytes], reason: str) -> None:
    """Metadata that HTTP/2 cannot carry are INVALID_ARGUMENT, by key, and the channel goes on."""
    async with served(GrpcTransport(), {ECHO: echo}) as (_, channel):
        with pytest.raises(InvalidArgument, match=re.escape(reason)):
            await channel.call(ECHO, b"", metadata=[pair])
        assert await channel.call(ECHO, b"x") == b"x"


@on_loop
async def test_a_call_without_a_message_is_answered() -> None:
    """A client that closes its side without sending anything gets INVALID_ARGUMENT."""

    async def nothing() -> AsyncIterator[bytes]:
        for message in list[bytes]():
            yield message

    async with _raw_client({ECHO: echo}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_unary(ECHO, None, None)(nothing())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@on_loop
async def test_a_foreign_client_is_told_the_limit() -> None:
    """A request over the limit is RESOURCE_EXHAUSTED with size and limit, whoever sends it."""
    async with _raw_client({ECHO: echo}, MessageLimits(receive_bytes=1000)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(ECHO, None, None)(bytes(1001))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1001 vs. 1000" in (caught.value.details() or "")


@on_loop
async def test_an_upload_that_has_begun_is_served_through_a_drain() -> None:
    """A call is in from its headers on: a message that ends after begin_drain is still answered."""
    transport = GrpcTransport()
    listener = transport.listen(LOOPBACK, {ECHO: echo})
    address = await listener.start()
    drained = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        await drained.wait()
        yield b"late message"

    async with grpc.aio.insecure_channel(str(address)) as channel:
        call = asyncio.ensure_future(channel.stream_unary(ECHO, None, None)(upload()))
        await until(lambda: listener.statistics().in_flight == 1)
        listener.begin_drain()
        drained.set()
        assert await call == b"late message"
        await listener.wait_idle()
        await listener.close()


@asynccontextmanager
async def _raw_client(routes: Routes, limits: MessageLimits = MessageLimits()) -> AsyncIterator[grpc.aio.Channel]:  # noqa: B008
    """A listener of ours, and a channel of plain grpcio to it."""
    listener = GrpcTransport().listen(LOOPBACK, routes, limits)
    async with grpc.aio.insecure_channel(str(await listener.start())) as channel:
        yield channel
    await listener.close()


class _Load:
    """Clients in a thread of their own that call without pause, and what they are answered."""

    def __init__(self, address: Address) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(address)))
        self._thread.start()

    async def finish(self) -> None:
        """Stop, and wait for the thread."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    async def _run(self, address: Address) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(str(address), options) for _ in range(4)]
        await asyncio.gather(*(self._repeat(channel) for channel in channels for _ in range(4)))
        for channel in channels:
            await channel.close(None)

    async def _repeat(self, channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(ECHO, None, None)
        while not self._stop.is_set():
            try:
                await call(bytes(1000), timeout=20)
                self.outcomes["OK"] += 1
            except grpc.aio.AioRpcError as error:
                self.outcomes[error.code().name] += 1
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("drain", [True, False], ids=["drained", "closed at once"])
@on_loop
async def test_under_load_nothing_accepted_is_lost_and_newcomers_are_unavailable(drain: bool) -> None:
    """While a listener drains and closes, clients see OK or UNAVAILABLE only; a drain loses no finished work."""
    finished = 0

    async def work(message: bytes, _context: CallContext) -> Sequence[Buffer]:
        nonlocal finished
        await asyncio.sleep(0.003)
        finished += 1
        return [message * 100]

    listener = GrpcTransport().listen(LOOPBACK, {ECHO: work})
    load = _Load(await listener.start())
    await until(lambda: finished >= 200)
    if drain:
        listener.begin_drain()
        await listener.wait_idle()
    await listener.close()
    await until(lambda: load.outcomes["UNAVAILABLE"] >= 32)
    await load.finish()
    assert set(load.outcomes) == {"OK", "UNAVAILABLE"}
    if drain:
        assert load.outcomes["OK"] == finished


@on_loop
async def test_large_replies_arrive_whole_before_the_close() -> None:
    """Replies that have left when the listener closes are delivered, though their clients are slow to read them."""
    reply = bytes(8 << 20)

    async def large(_message: bytes, _context: CallContext) -> Sequence[Buffer]:
        return [reply]

    async with served(GrpcTransport(), {ECHO: large}) as (listener, channel):
        callers = [asyncio.create_task(channel.call(ECHO, b"")) for _ in range(4)]
        await until(lambda: listener.statistics().calls_total == 4)
        listener.begin_drain()
        await listener.wait_idle()
        await listener.close()
        assert [len(arrived) for arrived in await asyncio.gather(*callers)] == [len(reply)] * 4


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "connection lost"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "what answers is no gRPC server|connection lost"),
        (b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08", "connection lost"),
        (b"\0\0\x08\x07\0\0\0\0\0" + bytes(8), "connection lost"),
        (b"\0\0\x01\x01\x05\0\0\0\x01\x8d", "what answers is no gRPC server"),
    ],
    ids=["closes", "HTTP/1", "resets the stream", "goes away", "other HTTP/2"],
)
@on_loop
async def test_a_peer_that_breaks_off_is_gone(answer: bytes, reason: str) -> None:
    """Whatever a broken peer does instead of answering is Unavailable, by address and in our words."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(24)
        if answer and not answer.startswith(b"HTTP"):
            writer.write(b"\0\0\0\x04\0\0\0\0\0")
            while len(await reader.read(1000)) < 60:
                pass
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname())
    channel = GrpcTransport().dial(address)
    with pytest.raises(Unavailable, match=f"^{address} is gone: ({reason})$"):
        await channel.call(ECHO, b"", deadline_ns=in_seconds(10))
    await channel.close()
    server.close()


@pytest.mark.parametrize(
    ("code", "details", "kind", "message"),
    [
        (
            "UNAVAILABLE",
            f"{CONNECTING} Failed to connect to remote host: Connection refused",
            Unavailable,
            "connection refused",
        ),
        (
            "UNAVAILABLE",
            f"{CONNECTING} connection attempt timed out before receiving SETTINGS",
            Unavailable,
            "no answer",
        ),
        ("UNAVAILABLE", "errors resolving h:1: [field:hostname lookup]", Unavailable, "its name cannot be resolved"),
        ("UNAVAILABLE", "Socket closed", ConnectionLost, "connection lost"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", ConnectionLost, "connection lost"),
        ("UNAVAILABLE", "keepalive watchdog timeout", ConnectionLost, "no answer"),
        ("CANCELLED", "Received RST_STREAM with error code 8", ConnectionLost, "connection lost"),
        (
            "INTERNAL",
            "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))",
            ConnectionLost,
            "connection lost",
        ),
        ("UNIMPLEMENTED", "Received http2 header with status: 404", Unavailable, "what answers is no gRPC server"),
        ("DEADLINE_EXCEEDED", "Stream removed (Deadline Exceeded)", DeadlineExceeded, "did not answer in time"),
        (
            "RESOURCE_EXHAUSTED",
            f"Stream removed (CLIENT: {OVERSIZE})",
            ResourceExhausted,
            "reply was refused: 9 bytes, limit 4",
        ),
        ("RESOURCE_EXHAUSTED", f"SERVER: {OVERSIZE}", ResourceExhausted, "h:1 refused the request: 9 bytes, limit 4"),
        ("UNAVAILABLE", "model 'm' is still loading", Unavailable, "model 'm' is still loading"),
        ("NOT_FOUND", "Socket 'closed' is no model", NotFound, "Socket 'closed' is no model"),
    ],
)
def test_the_librarys_own_texts_become_ours(code: str, details: str, kind: type[NodeError], message: str) -> None:
    """Failures that grpcio words itself, in this version and others, are told from answers of the peer, which stay."""
    channel = GrpcChannel(Address("h", 1), MessageLimits())
    error = grpc.aio.AioRpcError(
        getattr(grpc.StatusCode, code), grpc.aio.Metadata(), grpc.aio.Metadata(), details, None
    )
    translated = channel._translated(error)
    assert type(translated) is kind
    assert message in translated.message
    assert ("h:1 is gone: " in translated.message) == (issubclass(kind, Unavailable) and "model" not in details)


SERVER = """
import asyncio
from reactant_node.transport.grpcio import GrpcTransport
from tests.support.wire_calls import LOOPBACK, WAIT, Gate

async def main():
    listener = GrpcTransport().listen(LOOPBACK, {WAIT: Gate()})
    print((await listener.start()).port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@on_loop
async def test_a_killed_peer_is_noticed_at_once() -> None:
    """Kill -9 of the peer fails the calls in flight as ConnectionLost, at once, and later ones as Unavailable.

    Between the two a call may still go out on the connection that has ended, and is lost like those before it.
    """
    with subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 - quick
        assert process.stdout is not None
        address = Address("127.0.0.1", int(process.stdout.readline()))
        channel = GrpcTransport().dial(address)
        calls = [asyncio.create_task(channel.call(WAIT, b"")) for _ in range(5)]
        with pytest.raises(DeadlineExceeded):
            await channel.call(WAIT, b"", deadline_ns=in_seconds(0.3))
        process.send_signal(signal.SIGKILL)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {(type(outcome), str(outcome)) for outcome in outcomes} == {
            (ConnectionLost, f"{address} is gone: connection lost")
        }
        for _ in range(20):
            with pytest.raises(Unavailable, match="is gone") as later:
                await channel.call(WAIT, b"", deadline_ns=in_seconds(5))
            if later.type is Unavailable:
                break
        assert later.type is Unavailable
        await channel.close()


@on_loop
async def test_a_proxy_of_the_environment_is_not_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy does not stand between nodes."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with served(GrpcTransport(), {ECHO: echo}) as (_, channel):
        assert await channel.call(ECHO, b"x") == b"x"


def _in_thread(started: threading.Event, box: list[object]) -> None:
    """A server on a loop of its own thread, until told to stop."""

    async def main() -> None:
        stop = asyncio.Event()
        listener = GrpcTransport().listen(LOOPBACK, {ECHO: echo})
        box.extend([await listener.start(), asyncio.get_running_loop(), stop])
        started.set()
        await stop.wait()
        await listener.close()

    asyncio.run(main())


def test_two_loops_in_two_threads(caplog: pytest.LogCaptureFixture) -> None:
    """A server in a thread and clients on the main thread's loop work side by side, and silently."""
    for _ in range(3):
        box: list[object] = []
        started = threading.Event()
        thread = threading.Thread(target=_in_thread, args=(started, box))
        thread.start()
        started.wait(10)
        address, loop, stop = box
        assert isinstance(address, Address)
        asyncio.run(_call_many(address))
        assert isinstance(loop, asyncio.AbstractEventLoop)
        assert isinstance(stop, asyncio.Event)
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _call_many(address: Address) -> None:
    channel = GrpcTransport().dial(address)
    replies = await asyncio.gather(*(channel.call(ECHO, b"%d" % index) for index in range(200)))
    assert replies == [b"%d" % index for index in range(200)]
    await channel.close()


def test_processes_are_spawned_while_it_serves() -> None:
    """Children can be spawned from the main thread while another thread's loop serves, and the server goes on."""
    box: list[object] = []
    started = threading.Event()
    thread = threading.Thread(target=_in_thread, args=(started, box))
    thread.start()
    started.wait(10)
    address, loop, stop = box
    assert isinstance(address, Address)
    children = [multiprocessing.get_context("spawn").Process(target=int) for _ in range(2)]
    for child in children:
        asyncio.run(_call_many(address))
        child.start()
    asyncio.run(_call_many(address))
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0, 0]
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert isinstance(stop, asyncio.Event)
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)


def test_a_loop_may_end_with_a_channel_left_open() -> None:
    """A program that forgets to close its channel ends cleanly and silently."""
    program = """
        import asyncio
        from reactant_node.transport.grpcio import GrpcTransport
        from tests.support.wire_calls import ECHO, LOOPBACK, echo

        async def main():
            listener = GrpcTransport().listen(LOOPBACK, {ECHO: echo})
            channel = GrpcTransport().dial(await listener.start())
            assert await channel.call(ECHO, b"x") == b"x"
            await listener.close()
            return channel

        channel = asyncio.run(main())
        print(channel)
    """
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "open, 0 in flight" in result.stdout
