"""What the services know of the wire: methods, messages, deadlines. Nothing of gRPC's library or sockets.

A handler takes one message's bytes and a `CallContext` and returns the reply as buffers, or raises a `NodeError`,
whose class carries the gRPC status. When the client cancels, or its deadline passes, the handler's task is
cancelled (`asyncio.CancelledError`). Two implementations stand behind this: `grpcio.py` and, for whole nodes in
one test, `memory.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview
Handler = Callable[[bytes, "CallContext"], Awaitable[Sequence[Buffer]]]
Routes = Mapping[str, Handler]
"""Full method path, `/inference.GRPCInferenceService/ModelInfer`, to its handler. Others are UNIMPLEMENTED."""

DEFAULT_MESSAGE_BYTES = 512 * 1024 * 1024
"""Limit for one message, each way, on every hop; a limit, not an allocation. From the reference (WRK-7)."""


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Largest message in bytes, each way. A larger one is RESOURCE_EXHAUSTED and names the limit."""

    receive_bytes: int = DEFAULT_MESSAGE_BYTES
    send_bytes: int = DEFAULT_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or dial. Port 0 listens on any free one. A wildcard host means both address families."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CallContext(Protocol):
    """One call, seen from its handler."""

    @property
    def method(self) -> str:
        """Full method path."""
        ...

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """Request metadata, keys in lower case, transport headers left out."""
        ...

    @property
    def deadline_ns(self) -> int | None:
        """Absolute deadline on the monotonic clock, or None."""
        ...

    @property
    def peer(self) -> str:
        """The address that the call comes from, without the port; empty where it has none that counts."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """A snapshot: calls inside handlers now, and calls ever begun."""

    in_flight: int
    calls_total: int


class Listener(Protocol):
    """A server on one address."""

    async def start(self) -> Address:
        """Bind and serve; the address with the port really bound.

        Raises:
            AddressInUse: another socket listens there. The port is never shared.
        """
        ...

    def begin_drain(self) -> None:
        """From now on new calls are answered UNAVAILABLE; those in flight go on."""
        ...

    async def wait_idle(self) -> None:
        """Return once no call is in flight."""
        ...

    async def close(self) -> None:
        """Close the port and every connection; calls still in flight are answered UNAVAILABLE."""
        ...

    def statistics(self) -> ListenerStatistics:
        """Counts, safe to read from any thread."""
        ...


class Channel(Protocol):
    """A client's connection to one address; reconnects by itself."""

    async def call(
        self,
        method: str,
        message: Buffer,
        *,
        deadline_ns: int | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> bytes:
        """One unary call. `deadline_ns` is absolute and travels as grpc-timeout.

        Raises:
            NodeError: by the peer's status (`errors.from_status`); `Unavailable` where the peer is gone, at once,
                and `ConnectionLost`, one of them, where it went away with this call.
        """
        ...

    async def close(self) -> None:
        """Close; calls in flight raise `Unavailable`."""
        ...


class Transport(Protocol):
    """Makes listeners and channels."""

    def listen(self, address: Address, routes: Routes, limits: MessageLimits = ...) -> Listener:
        """A listener, not yet started."""
        ...

    def dial(self, address: Address, limits: MessageLimits = ...) -> Channel:
        """A channel; connects when first used, or in the background."""
        ...
