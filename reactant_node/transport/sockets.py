"""Ends the TCP connections of one local port in good order, beside the library that owns them.

grpcio stops a server by resetting what it has not handed out yet, which its client sees as CANCELLED, as if it had
given up itself. A client that calls while a node stops has to read UNAVAILABLE, so that it goes elsewhere. TCP says
just that: refuse new connections, and close the sending side of the others (FIN). The peer first reads all that was
sent before, answers included, and then finds the connection ended; what it still sends goes nowhere.

The sockets are found among this process's file descriptors by their local port, and held by duplicates until the
peer's kernel has acknowledged everything: closing a socket with unread input would make the kernel throw away
output on its way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Self

_TCP_FIN_WAIT1 = 4
"""Linux's state of a connection whose FIN, or data before it, the peer has not acknowledged."""

_POLL_SECONDS = 0.005


class PortSockets:
    """The connections of one local port, from `end` on. A context manager, owned by one task."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._held: dict[int, socket.socket] = {}  # by inode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._held.values():
            held.close()

    def __repr__(self) -> str:
        return f"<PortSockets port {self._port}, {len(self._held)} held>"

    def end(self) -> None:
        """Take no new connections, and then send no more on those there are."""
        for listener in self._hold(listening=True):
            _shut(listener, socket.SHUT_RDWR)
        for connection in self._hold(listening=False):
            _shut(connection, socket.SHUT_WR)

    async def wait_delivered(self, timeout_seconds: float) -> None:
        """Return once the peers have all that was sent, or the time is over."""
        for _ in range(int(timeout_seconds / _POLL_SECONDS)):
            if not any(map(_undelivered, self._held.values())):
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _hold(self, *, listening: bool) -> list[socket.socket]:
        """The port's sockets of one kind that are not held yet, and are from now on."""
        found = []
        for descriptor in _descriptors():
            candidate = _duplicate(descriptor)
            if candidate is None:
                continue
            inode = os.fstat(candidate.fileno()).st_ino
            wanted = _local_port(candidate) == self._port and _is_listening(candidate) == listening
            if wanted and inode not in self._held:
                self._held[inode] = candidate
                found.append(candidate)
            else:
                candidate.close()
        return found


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - all at once: duplicates follow
    except OSError:
        # Without /proc, or a descriptor to read it by, the library's own way to stop has to do.
        return []


def _duplicate(descriptor: int) -> socket.socket | None:
    """Whoever owns a descriptor may close it at any moment; only a duplicate is safe to look at."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None


def _local_port(candidate: socket.socket) -> int | None:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
        return None
    return int(candidate.getsockname()[1])


def _is_listening(candidate: socket.socket) -> bool:
    return candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # the peer was faster
        connection.shutdown(how)


def _undelivered(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_FIN_WAIT1
