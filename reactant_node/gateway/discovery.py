"""Which workers there are and what they serve: probes them, and keeps the routing table.

Theory. The gateway is told of workers by the supervisor (role `all`) or by its configuration (role `gateway`), and
asks each of them two things: ServerReady and RepositoryIndex. A worker's newest answer is its report; the table is
built from the reports and is replaced as soon as one of them changes, never at the end of a round, so that one
worker that hangs delays nobody else's news. There are three occasions:

- every `interval_seconds`, all workers in parallel; every second while one of them has not answered;
- at once, that worker, when it becomes ready;
- on demand, when a request names a model nobody serves: one round, shared by all who wait, at most one per second.

A worker leaves the table at once when the supervisor says that it is gone, and with its first failed probe when
not. Its replica object, and so the calls in flight on it, are not touched by a failed probe: a worker that is slow
to answer a probe may well be about to answer those.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.errors import NodeError
from reactant_node.gateway.replica import Replica
from reactant_node.gateway.table import RoutingTable, WorkerReport, build
from reactant_node.kserve import metadata
from reactant_node.transport.interface import Address

PROBE_SECONDS = 5.0
"""Deadline of each probe, both questions together (GW-3): an idle worker needs milliseconds, a busy one some more."""

REFRESH_NS = NS_PER_SECOND
"""Requests for unknown models cause at most one round in this time (GW-6): a client must not steer our traffic."""

RETRY_SECONDS = 1.0
"""Between rounds while a worker does not answer, so that a restarted one is not idle for a whole interval."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A worker to be asked: its name, and where its gRPC port is."""

    name: str
    address: Address


class Discovery:
    """The workers and the table. All state belongs to the gateway's loop; `table` may be read from any thread.

    Args:
        dial: makes the replica for an endpoint.
        clock: for deadlines and the limit on rounds.
        interval_seconds: between rounds.
    """

    def __init__(self, dial: Callable[[Endpoint], Replica], clock: Clock, interval_seconds: float) -> None:
        self.table = RoutingTable()
        self.models_ever_listed: set[str] = set()
        self._dial, self._clock, self._interval_seconds = dial, clock, interval_seconds
        self._replicas: dict[str, Replica] = {}
        self._reports: dict[str, WorkerReport] = {}
        self._round: asyncio.Task[None] | None = None
        self._round_began_ns = clock.now_ns() - REFRESH_NS
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """Every worker that is not gone, by name, whether it answers or not."""
        return self._replicas

    def outstanding(self) -> Mapping[str, int]:
        """Calls in flight per worker."""
        return {name: replica.outstanding for name, replica in self._replicas.items()}

    def add(self, endpoint: Endpoint) -> None:
        """A worker is there: dial it, and ask it at once. One of the same name is replaced."""
        self.remove(endpoint.name)
        replica = self._dial(endpoint)
        self._replicas[endpoint.name] = replica
        self._spawn(self._probe(replica))

    def remove(self, name: str) -> None:
        """A worker is gone or about to go: nothing new is sent to it. Its calls in flight go on."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            replica.retire()
            self._spawn(replica.close_when_idle())
            self._accept(name, None)

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            all_answer = len(self._reports) == len(self._replicas)
            await asyncio.sleep(self._interval_seconds if all_answer else min(RETRY_SECONDS, self._interval_seconds))
            await asyncio.shield(self._begin_round())

    async def refresh(self) -> None:
        """Return after the round that is running, or a new one unless the last began less than `REFRESH_NS` ago."""
        self.request_refresh()
        if self._round is not None and not self._round.done():
            await asyncio.shield(self._round)  # whoever stops waiting does not stop it for the others

    def request_refresh(self) -> None:
        """As `refresh`, without waiting."""
        if self._clock.now_ns() - self._round_began_ns >= REFRESH_NS:
            self._begin_round()

    async def close(self) -> None:
        """Stop asking, and close every channel; calls in flight raise `Unavailable`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))

    def __repr__(self) -> str:
        return f"<Discovery {self.table}; {len(self._replicas)} known>"

    def _begin_round(self) -> asyncio.Task[None]:
        """A new round, or the one that is running."""
        if self._round is None or self._round.done():
            self._round_began_ns = self._clock.now_ns()
            self._round = self._spawn(self._probe_all())
        return self._round

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe(replica) for replica in self._replicas.values()))

    async def _probe(self, replica: Replica) -> None:
        deadline_ns = self._clock.now_ns() + round(PROBE_SECONDS * NS_PER_SECOND)
        try:
            report = await ask_worker(replica, deadline_ns)
        except NodeError as error:
            report = None
            if replica.name in self._reports:
                _log.warning("worker does not answer", extra={"worker": replica.name, "error": error.message})
        if self._replicas.get(replica.name) is replica:  # else the answer is a dead one's
            self._accept(replica.name, report)

    def _accept(self, name: str, report: WorkerReport | None) -> None:
        """Take a worker's newest report, None where it does not answer, and replace the table if that changes it."""
        before = self._reports.get(name)
        if report == before:
            return
        if report is None:
            del self._reports[name]
        else:
            self._reports[name] = report
            self.models_ever_listed.update(model.name for model in report.models)
            _log.info("worker answers", extra={"worker": name, "ready": report.ready, "models": len(report.models)})
        self.table = build(self.table.generation + 1, self._reports)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return task


async def ask_worker(replica: Replica, deadline_ns: int) -> WorkerReport:
    """What a worker says of itself now.

    Raises:
        NodeError: it does not answer, or not properly.
    """
    # In this order: an index read before the worker became ready would lack what its readiness promises.
    ready = await replica.ask(metadata.SERVER_READY, b"", deadline_ns=deadline_ns)
    index = await replica.ask(metadata.REPOSITORY_INDEX, metadata.encode_index_request(), deadline_ns=deadline_ns)
    return WorkerReport(metadata.decode_ready(ready), metadata.decode_index(index))
