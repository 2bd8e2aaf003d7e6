"""A gateway thread in front of scripted workers, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from reactant_node.clock import NS_PER_SECOND, MonotonicClock
from reactant_node.config.schema import GatewayConfig, ListenConfig
from reactant_node.gateway.server import GatewayThread
from reactant_node.reports import Ready
from reactant_node.telemetry.admin import AdminServer, AdminSource, Status
from reactant_node.telemetry.metrics import family, render, with_labels
from reactant_node.transport.grpcio import GrpcTransport
from reactant_node.transport.interface import Address, Channel, Listener
from tests.support.gateway_workers import ScriptedWorker

LIMIT_SECONDS = 20.0

_Result = TypeVar("_Result")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; fail naming what did not come."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT_SECONDS} s: {what}"
        time.sleep(0.005)


class WorkerHost:
    """A loop in a thread on which workers listen and a client calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._transport = GrpcTransport()
        self._listeners: dict[str, Listener] = {}
        self._admins: dict[str, AdminServer] = {}
        self._channels: dict[int, Channel] = {}

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of a coroutine on the host's loop."""
        return self.begin(work).result(LIMIT_SECONDS)

    def begin(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start a coroutine on the host's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def listen(self, worker: ScriptedWorker) -> Ready:
        """Start a worker on free ports; what it would report."""
        return self.run(self._listen(worker))

    async def _listen(self, worker: ScriptedWorker) -> Ready:
        listener = self._transport.listen(Address("127.0.0.1", 0), worker.routes())
        port = (await listener.start()).port
        self._listeners[worker.name] = listener
        self._admins[worker.name] = AdminServer("127.0.0.1", 0, _worker_source(worker))
        return Ready(port, self._admins[worker.name].start())

    def kill(self, name: str) -> None:
        """End a worker: its calls in flight are UNAVAILABLE, its ports closed."""
        self._admins.pop(name).stop()
        self.run(self._listeners.pop(name).close())

    def call(self, port: int, method: str, message: bytes = b"", seconds: float = LIMIT_SECONDS) -> Future[bytes]:
        """A client's call, begun."""
        deadline_ns = MonotonicClock().now_ns() + round(seconds * NS_PER_SECOND)

        async def call() -> bytes:
            channel = self._channels.setdefault(port, self._transport.dial(Address("127.0.0.1", port)))
            return await channel.call(method, message, deadline_ns=deadline_ns)

        return self.begin(call())

    def close(self) -> None:
        """End everything."""
        for name in list(self._listeners):
            self.kill(name)
        for channel in self._channels.values():
            self.run(channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self._loop.close()


def _worker_source(worker: ScriptedWorker) -> AdminSource:
    def families() -> Any:
        count = worker.count("ModelInfer")
        yield from with_labels([family("worker_requests_total", [(("m", "OK"), count)])], {"worker": worker.name})

    status = Status("1", "worker", 0, (), ())
    return AdminSource(lambda: None, lambda accept: render(families(), accept), lambda: status)


def gateway_of(*workers: str, **settings: Any) -> GatewayThread:
    """A gateway on free loopback ports that expects these workers."""
    listen = ListenConfig("127.0.0.1", 0, "127.0.0.1", 0)
    return GatewayThread(
        GatewayConfig(**{"listen": listen, **settings}),
        GrpcTransport,
        MonotonicClock(),
        workers=workers,
        restarts=lambda: {"worker0": 2},
    )


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body from the admin port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ready(gateway: GatewayThread) -> bool:
    """What /readyz says."""
    return get(gateway.metrics_port, "/readyz")[0] == 200
