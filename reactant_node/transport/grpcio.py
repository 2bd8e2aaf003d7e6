"""The transport over grpcio, and the only place that imports it.

Handlers are generic: method paths and bytes, no generated stubs. A unary call is served as a stream of one message,
because grpcio then hands the call over when its headers arrive, not when its last byte has: a drain must know of an
upload that has begun. The task that grpcio runs a call in is the call's, from then until its reply has left.

grpcio polls all event loops of a process with one thread and one queue. Several loops in several threads work, but
a process that serves under load should run one: loops wake each other up for nothing.

Errors that grpcio makes up itself (connection refused, a reset stream) come with texts for its own developers and
with codes that vary. Here they all become `Unavailable`, naming the address and what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import (
    AddressInUse,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    NodeError,
    ResourceExhausted,
    StatusCode,
    Unavailable,
    Unimplemented,
    from_status,
)
from reactant_node.transport.addresses import check_free, is_wildcard, peer_host
from reactant_node.transport.calls import Calls
from reactant_node.transport.interface import (
    Address,
    Buffer,
    Channel,
    Handler,
    Listener,
    ListenerStatistics,
    MessageLimits,
    Routes,
)
from reactant_node.transport.limits import checked_request, joined_reply, remaining_seconds
from reactant_node.transport.sockets import PortSockets

# grpcio writes log lines of its own to stderr, past every logging configuration, about what is raised to us anyway.
# It reads the variable when it is loaded; whoever has set it is after something.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc
import grpc.aio

_GRPC_CODES = {StatusCode(code.value[0]): code for code in grpc.StatusCode}

_MAX_OPTION = 2**31 - 1
"""grpcio's options are C integers."""

_MAX_STATUS_BYTES = 1024
"""Of a status message. It travels in a header, escaped to at most three times its size, and many clients refuse
headers over 8 KiB altogether: then the status would be lost with its message."""

_FLUSH_SECONDS = 1.0
"""Grace at close for handlers that have been cancelled, and for answers on their way out."""

_OVERSIZE = re.compile(r"(?P<side>SERVER|CLIENT): .*larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")
_METADATA_KEY = re.compile(r"[0-9a-z_.-]+")

_CARRIER_FAILURE = re.compile(
    r"failed to connect|errors resolving|DNS resolution failed|Stream removed|Socket closed|Connection reset|recvmsg"
    r"|sendmsg|Broken pipe|GOAWAY|Cancelling all calls|Received (RST_STREAM|http2 header)|No status received"
    r"|Failed parsing HTTP/2|keepalive|ping timeout",
    re.IGNORECASE,
)
"""How the texts begin that grpcio writes itself where there is no answer of the peer."""

_CARRIER_REASONS = (
    ("(?i)refused", Unavailable, "connection refused"),
    ("(?i)keepalive|ping", ConnectionLost, "no answer"),
    ("(?i)timed out|timeout", Unavailable, "no answer"),
    ("(?i)unreachable|cannot assign|not supported", Unavailable, "no route to it"),
    ("(?i)resolv", Unavailable, "its name cannot be resolved"),
    ("http1|http2 header|No status|parsing HTTP", Unavailable, "what answers is no gRPC server"),
    ("(?i)failed to connect", Unavailable, "connection lost"),
    ("", ConnectionLost, "connection lost"),
)
"""What is to be seen in those texts, whether the peer had the call, and our words; the first that fits."""

_METADATA_OPTIONS = (
    # 8 KiB, the default, is less than some single sign-on tokens; the hard limit follows.
    ("grpc.max_metadata_size", 32 * 1024),
    ("grpc.absolute_max_metadata_size", 64 * 1024),
)

_SERVER_OPTIONS = (
    *_METADATA_OPTIONS,
    # A second server on the port has to fail; by default the kernel would split the traffic between the two.
    ("grpc.so_reuseport", 0),
    # Load balancers and firewalls drop silent connections after some minutes: notice, and end the calls on them.
    ("grpc.keepalive_time_ms", 120_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients may do the same, every 5 s and between calls; by default grpcio cuts them off for "too many pings".
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

_CHANNEL_OPTIONS = (
    *_METADATA_OPTIONS,
    # A worker that was restarted is back within a second or two: ask often. One attempt is not waited for longer
    # than 2 s (grpcio's "minimum back-off" is that), so that a host that swallows packets is found unavailable.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Each channel its own connection and its own back-off, whoever else talks to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy in the environment is for the outside world, not for workers.
    ("grpc.enable_http_proxy", 0),
    # A host that vanished while calls wait for it.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class GrpcTransport:
    """Makes gRPC listeners and channels. Each belongs to the event loop that first uses it."""

    def listen(self, address: Address, routes: Routes, limits: MessageLimits = MessageLimits()) -> Listener:  # noqa: B008 - frozen
        """A server, not yet started."""
        return GrpcListener(address, routes, limits)

    def dial(self, address: Address, limits: MessageLimits = MessageLimits()) -> Channel:  # noqa: B008 - frozen
        """A channel, which connects at its first call."""
        return GrpcChannel(address, limits)


@dataclass(frozen=True, slots=True)
class GrpcCallContext:
    """One call, seen from its handler; see `interface.CallContext`."""

    method: str
    metadata: Sequence[tuple[str, str | bytes]]
    deadline_ns: int | None
    peer: str


class _ServerCall(Protocol):
    """What is used of `grpc.aio.ServicerContext`, whose published types fall short."""

    async def read(self) -> object: ...
    async def abort(self, code: grpc.StatusCode, details: str) -> object: ...
    def add_done_callback(self, callback: Callable[[object], None]) -> None: ...
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]: ...
    def time_remaining(self) -> float | None: ...
    def peer(self) -> str: ...


class GrpcListener:
    """A server; see `interface.Listener`.

    Owned by the event loop that starts it; `begin_drain`, `statistics` and `repr` may be used from any thread.
    """

    def __init__(self, address: Address, routes: Routes, limits: MessageLimits) -> None:
        self._address = address
        self._routes = routes
        self._limits = limits
        self._calls = Calls()
        self._server: grpc.aio.Server | None = None

    def __repr__(self) -> str:
        return f"<GrpcListener {self._address} {self._calls!r}>"

    async def start(self) -> Address:
        """See `interface.Listener.start`."""
        # grpcio is content with one address of several; we are not.
        check_free(self._address)
        self._server = grpc.aio.server(handlers=[_Dispatch(self._serve)], options=_server_options(self._limits))
        self._address = Address(self._address.host, self._bind(self._server))
        await self._server.start()
        return self._address

    def begin_drain(self) -> None:
        """See `interface.Listener.begin_drain`."""
        self._calls.begin_drain()

    async def wait_idle(self) -> None:
        """See `interface.Listener.wait_idle`."""
        await self._calls.wait_idle()

    async def close(self) -> None:
        """See `interface.Listener.close`."""
        self._calls.abandon()
        server, self._server = self._server, None
        if server is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.wait_idle(), _FLUSH_SECONDS)
        with PortSockets(self._address.port) as sockets:
            sockets.end()
            await server.stop(None)
            await sockets.wait_delivered(_FLUSH_SECONDS)

    def statistics(self) -> ListenerStatistics:
        """See `interface.Listener.statistics`."""
        return self._calls.statistics()

    def _bind(self, server: grpc.aio.Server) -> int:
        # grpcio takes either wildcard for both families, and either family alone where the other is missing.
        target = f"[::]:{self._address.port}" if is_wildcard(self._address.host) else str(self._address)
        try:
            return server.add_insecure_port(target)
        except RuntimeError as error:
            raise AddressInUse(f"{self._address} cannot be listened on: {error}") from error

    async def _serve(self, method: str, call: _ServerCall) -> bytes:
        try:
            handler = self._routes.get(method)
            if handler is None:
                raise Unimplemented(f"method {method} is not served here")
            release = self._calls.admit()
            call.add_done_callback(lambda _: release())
            return await self._calls.run(method, self._exchange(method, handler, call))
        except NodeError as error:
            with contextlib.suppress(grpc.aio.InternalError):  # the caller has gone in the meantime
                await call.abort(_GRPC_CODES[error.status], _status_text(error.message))
            return b""

    async def _exchange(self, method: str, handler: Handler, call: _ServerCall) -> bytes:
        pairs = _metadata(call.invocation_metadata())
        context = GrpcCallContext(method, pairs, _deadline_ns(call.time_remaining()), peer_host(call.peer()))
        message = await call.read()
        if not isinstance(message, bytes):
            raise InvalidArgument("the call carries no message, or one over the limit")
        return joined_reply(await handler(message, context), self._limits.send_bytes)


class GrpcChannel:
    """A connection to one address; see `interface.Channel`. Owned by the event loop that makes its first call."""

    def __init__(self, address: Address, limits: MessageLimits) -> None:
        self._address = address
        self._limits = limits
        self._channel: grpc.aio.Channel | None = None
        self._in_flight = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<GrpcChannel {self._address} {'closed' if self._closed else 'open'}, {self._in_flight} in flight>"

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
        invoke = self._opened().unary_unary(method, None, None)
        timeout = remaining_seconds(deadline_ns)
        self._in_flight += 1
        try:
            reply: bytes = await invoke(request, timeout=timeout, metadata=_checked_metadata(metadata))
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error
        except asyncio.CancelledError:
            # grpcio says the same when the channel is closed as when our own task is cancelled.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise self._closed_error() from None
            raise
        else:
            return reply
        finally:
            self._in_flight -= 1

    async def close(self) -> None:
        """See `interface.Channel.close`."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close(None)

    def _opened(self) -> grpc.aio.Channel:
        if self._closed:
            raise self._closed_error()
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(_dial_target(self._address), _channel_options(self._limits))
        return self._channel

    def _closed_error(self) -> Unavailable:
        return Unavailable(f"the connection to {self._address} was closed")

    def _translated(self, error: grpc.aio.AioRpcError) -> NodeError:
        status, details = StatusCode(error.code().value[0]), error.details() or ""
        if status is StatusCode.DEADLINE_EXCEEDED and "Deadline Exceeded" in details:
            return DeadlineExceeded(f"{self._address} did not answer in time")
        if size := _OVERSIZE.search(details):
            whose = f"{self._address} refused the request" if size["side"] == "SERVER" else "the reply was refused"
            return ResourceExhausted(f"{whose}: {size['size']} bytes, limit {size['limit']} (grpc.max_recv_msg_bytes)")
        if _CARRIER_FAILURE.match(details):
            kind, reason = next((kind, words) for sign, kind, words in _CARRIER_REASONS if re.search(sign, details))
            return kind(f"{self._address} is gone: {reason}")
        return from_status(status, details)


class _Dispatch(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic in the stubs only
    """Hands every method to one function: paths, not services, are what a listener knows."""

    def __init__(self, serve: Callable[[str, _ServerCall], Awaitable[bytes]]) -> None:
        self._serve = serve

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method

        async def serve(_messages: object, call: _ServerCall) -> bytes:
            return await self._serve(method, call)

        return grpc.stream_unary_rpc_method_handler(serve)


def _server_options(limits: MessageLimits) -> list[tuple[str, int]]:
    # What is sent is checked by ourselves, so that the error can say which setting is meant.
    return [
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", min(limits.receive_bytes, _MAX_OPTION)),
        ("grpc.max_send_message_length", _MAX_OPTION),
    ]


def _channel_options(limits: MessageLimits) -> list[tuple[str, int]]:
    return [
        *_CHANNEL_OPTIONS,
        ("grpc.max_receive_message_length", min(limits.receive_bytes, _MAX_OPTION)),
        ("grpc.max_send_message_length", _MAX_OPTION),
    ]


def _dial_target(address: Address) -> str:
    """The address as grpcio names it; a literal address goes to no resolver."""
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        return f"dns:///{address}"
    return f"ipv{version}:{address}"


def _metadata(pairs: Iterable[tuple[str, str | bytes]]) -> tuple[tuple[str, str | bytes], ...]:
    return tuple((key, value) for key, value in pairs if key != "user-agent" and not key.startswith((":", "grpc-")))


def _checked_metadata(pairs: Sequence[tuple[str, str | bytes]]) -> tuple[tuple[str, str | bytes], ...]:
    for key, value in pairs:
        if not _METADATA_KEY.fullmatch(key) or key.startswith("grpc-"):
            raise InvalidArgument(f"metadata key {key!r}: use lower-case letters, digits and _ . -")
        if key.endswith("-bin") != isinstance(value, bytes):
            raise InvalidArgument(f"metadata {key!r}: bytes travel under keys that end in -bin, text under others")
        if isinstance(value, str) and not (value.isascii() and value.isprintable()):
            raise InvalidArgument(f"metadata {key!r}: the value has to be printable ASCII")
    return tuple(pairs)


def _deadline_ns(remaining_seconds: float | None) -> int | None:
    if remaining_seconds is None:
        return None
    return time.monotonic_ns() + int(remaining_seconds * NS_PER_SECOND)


def _status_text(message: str) -> str:
    """A status message fit for a header: encodable, and cut between characters where it is long."""
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= _MAX_STATUS_BYTES:
        return encoded.decode("utf-8")
    return encoded[: _MAX_STATUS_BYTES - 3].decode("utf-8", "ignore") + "..."
