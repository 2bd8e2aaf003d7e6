"""One life of the gateway's thread: an event loop that discovers, forwards and listens until it is told to stop.

Everything made here belongs to the loop. Other threads call the methods of `GatewayLoop`, which cross over by
`call_soon_threadsafe`, and read the attributes and properties that its docstring names.

If any of the parts that run for ever fails, the loop ends with that error and is started anew as a whole by the
supervisor: a gateway that has lost its discovery would serve a table that gets older and older.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from reactant_node.config.schema import GatewayConfig
from reactant_node.errors import Unavailable
from reactant_node.gateway.discovery import Discovery, Endpoint
from reactant_node.gateway.forward import Forwarder, ForwardLimits
from reactant_node.gateway.observe import Recorder
from reactant_node.gateway.replica import Replica
from reactant_node.gateway.selection import selector
from reactant_node.gateway.service import NodeService
from reactant_node.gateway.table import RoutingTable
from reactant_node.transport.interface import Address, Listener, MessageLimits, Transport

BEAT_SECONDS = 0.5
"""How often the loop says that it turns."""

START_SECONDS = 10.0
"""For binding the public port, which takes milliseconds."""

_log = logging.getLogger(__name__)


class GatewayLoop:
    """A thread, its loop and the gateway's parts on it. Started once, stopped once.

    Read from any thread: `turned_ns` (when the loop last turned), `error` (why the thread ended by itself),
    `alive`, `table`, `in_flight` and `drained`.

    Args:
        config: limits, intervals and scheduling mode.
        make_transport: called on the loop.
        recorder: counts calls; its clock is the gateway's.
        not_ready: why the node cannot serve now, or None.
        max_in_flight: the cap on ModelInfer calls; 0 is none.
    """

    def __init__(
        self,
        config: GatewayConfig,
        make_transport: Callable[[], Transport],
        recorder: Recorder,
        not_ready: Callable[[], str | None],
        *,
        max_in_flight: int,
    ) -> None:
        self.turned_ns = recorder.clock.now_ns()
        self.error: BaseException | None = None
        self._config, self._make_transport, self._recorder = config, make_transport, recorder
        self._not_ready, self._max_in_flight = not_ready, max_in_flight
        self._bound: Future[Address] = Future()
        self._thread = threading.Thread(target=self._main, name="gateway", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._transport: Transport
        self._discovery: Discovery
        self._forwarder: Forwarder
        self._listener: Listener
        self._drain_begun = False

    def start(self, address: Address, endpoints: Sequence[Endpoint]) -> Address:
        """Start the thread; return the address with the port really bound.

        Raises:
            AddressInUse: the port is taken.
            NodeError: as the transport says, or `Unavailable` where it does not start in `START_SECONDS`.
        """
        self._address, self._endpoints = address, endpoints
        self._thread.start()
        try:
            return self._bound.result(START_SECONDS)
        except TimeoutError as error:
            raise Unavailable(f"the gateway did not listen on {address} within {START_SECONDS} s") from error

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    @property
    def table(self) -> RoutingTable:
        """The routing table in force."""
        return self._discovery.table

    @property
    def in_flight(self) -> int:
        """ModelInfer calls inside the gateway now."""
        return self._forwarder.in_flight

    @property
    def drained(self) -> bool:
        """New calls are refused, and none is in flight."""
        return self._drain_begun and self._listener.statistics().in_flight == 0

    def add(self, endpoint: Endpoint) -> None:
        """A worker is there."""
        self._call_soon(self._discovery.add, endpoint)

    def remove(self, worker: str) -> None:
        """A worker is gone or going."""
        self._call_soon(self._discovery.remove, worker)

    def begin_drain(self) -> None:
        """Answer new calls UNAVAILABLE from now on."""
        self._call_soon(self._refuse_new_calls)

    def stop(self, timeout_seconds: float) -> bool:
        """Close everything and join; False where the thread did not end in time."""
        self._call_soon(self._stop.set)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def __repr__(self) -> str:
        state = "running" if self.alive else f"ended ({self.error})"
        return f"<GatewayLoop {state}, {self._discovery!r}, {self._forwarder!r}>"

    def _call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop has ended: `alive` says so
            return

    def _refuse_new_calls(self) -> None:
        self._listener.begin_drain()
        self._drain_begun = True

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - a thread's last word: whoever started or watches it is told
            self.error = error
            if self._bound.done():
                _log.exception("the gateway's thread ends")
            else:
                self._bound.set_exception(error)

    async def _serve(self) -> None:
        self._assemble()
        try:
            for endpoint in self._endpoints:
                self._discovery.add(endpoint)
            self._bound.set_result(await self._listener.start())
            await self._first_end(self._stop.wait(), self._discovery.run(), self._beat())
        finally:
            await self._listener.close()
            await self._discovery.close()

    def _assemble(self) -> None:
        config, clock = self._config, self._recorder.clock
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._transport = self._make_transport()
        self._discovery = Discovery(self._dial, clock, config.health_interval_seconds)
        limits = ForwardLimits(self._max_in_flight, config.request_timeout_seconds)
        self._forwarder = Forwarder(self._discovery, selector(config.scheduling_mode), limits, self._recorder)
        service = NodeService(self._discovery, self._forwarder, self._recorder, self._not_ready)
        self._listener = self._transport.listen(self._address, service.routes(config.rpcs), self._limits())

    def _limits(self) -> MessageLimits:
        return MessageLimits(self._config.grpc.max_recv_msg_bytes, self._config.grpc.max_send_msg_bytes)

    def _dial(self, endpoint: Endpoint) -> Replica:
        # What comes in from the client goes out to the worker, and the other way round.
        inward = self._limits()
        channel = self._transport.dial(
            endpoint.address, MessageLimits(receive_bytes=inward.send_bytes, send_bytes=inward.receive_bytes)
        )
        return Replica(endpoint.name, channel, streams=self._config.max_concurrent_streams, recorder=self._recorder)

    async def _beat(self) -> None:
        while True:
            self.turned_ns = self._recorder.clock.now_ns()
            await asyncio.sleep(BEAT_SECONDS)

    @staticmethod
    async def _first_end(*works: Coroutine[Any, Any, Any]) -> None:
        """Return when one ends, raise when one fails; the others are cancelled."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()
