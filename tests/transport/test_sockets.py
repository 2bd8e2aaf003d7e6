"""Connections of a port are ended so that the peer reads all that was sent, and then the end."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from reactant_node.transport.sockets import PortSockets
from tests.support.wire_calls import on_loop


def connected() -> tuple[socket.socket, socket.socket, socket.socket]:
    """A listener, and the two ends of a connection to it: the client's and ours."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname(), timeout=10)
    accepted, _ = listener.accept()
    return listener, client, accepted


def descriptors() -> int:
    """How many file descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@on_loop
async def test_the_peer_reads_everything_and_then_the_end() -> None:
    """What was sent before arrives whole, also where our socket is closed behind it with input unread."""
    listener, client, accepted = connected()
    payload = bytes(3_000_000)
    accepted.setblocking(False)
    sent = accepted.send(payload)
    client.send(b"unread input, which would reset the connection")
    with PortSockets(listener.getsockname()[1]) as sockets:
        sockets.end()
        accepted.close()
        reading = asyncio.create_task(asyncio.to_thread(_read_to_end, client))
        await sockets.wait_delivered(10)
    assert await reading == sent
    client.close()
    listener.close()


@on_loop
async def test_a_peer_that_does_not_read_is_not_waited_for() -> None:
    """The wait for delivery is bounded."""
    listener, client, accepted = connected()
    accepted.setblocking(False)
    while True:
        try:
            accepted.send(bytes(1_000_000))
        except BlockingIOError:
            break
    with PortSockets(listener.getsockname()[1]) as sockets:
        sockets.end()
        await sockets.wait_delivered(0.05)
        assert "2 held" in repr(sockets)
    for each in (listener, client, accepted):
        each.close()


def test_no_connection_is_taken_any_more() -> None:
    """The port refuses connections at once, although whoever owns the listening socket has not closed it."""
    listener, client, accepted = connected()
    with PortSockets(listener.getsockname()[1]) as sockets:
        sockets.end()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname(), timeout=10)
    for each in (listener, client, accepted):
        each.close()


def test_other_sockets_are_left_alone() -> None:
    """Sockets of other ports, the client's end of our connections, pipes and files are not touched, and none leaks."""
    listener, client, accepted = connected()
    other_listener, other_client, other_accepted = connected()
    reading, writing = os.pipe()
    before = descriptors()
    with PortSockets(listener.getsockname()[1]) as sockets:
        sockets.end()
    assert descriptors() == before
    client.sendall(b"up")
    assert accepted.recv(2) == b"up"
    other_accepted.sendall(b"down")
    assert other_client.recv(4) == b"down"
    os.write(writing, b"x")
    assert os.read(reading, 1) == b"x"
    for each in (listener, client, accepted, other_listener, other_client, other_accepted):
        each.close()
    os.close(reading)
    os.close(writing)


def _read_to_end(client: socket.socket) -> int:
    total = 0
    while chunk := client.recv(1 << 20):
        total += len(chunk)
    return total
