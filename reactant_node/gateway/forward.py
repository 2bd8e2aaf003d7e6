"""Calls that go on to a worker: which one, how often, until when. Bytes pass through both ways.

Theory. A request is read as far as its model's name, and sent to the replicas of that model in the order the
selector gives. UNAVAILABLE and NOT_FOUND mean that another replica may do better, and each is tried once; any other
answer is the request's own and goes back as it came, status and message. The one deadline, the client's or else
`request_timeout_seconds` from now, covers waiting and every try.

A replica that went away with the call in its hands may have died of it. One such loss is the worker's bad luck; a
second one is the request's doing until shown otherwise, and goes back as UNAVAILABLE: a request that crashes its
worker must not go on through all of them (`MAX_LOSSES`).

A name without a replica is looked for once more (one shared probe round). If there is still none, the answer is a
worker's: of one that lists the model, since it knows why it cannot run, else of any, since it says NOT_FOUND in the
very words a client of a single worker gets. So nothing here can differ from what a worker says.

Only ModelInfer counts against the cap and takes a stream; questions are never shed and never wait behind inferences.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import ConnectionLost, NodeError, NotFound, ResourceExhausted, Unavailable
from reactant_node.gateway.discovery import Discovery
from reactant_node.gateway.observe import Recorder
from reactant_node.gateway.replica import Replica
from reactant_node.gateway.selection import Selector
from reactant_node.transport.interface import CallContext

MAX_LOSSES = 2

Attempt = Callable[[Replica], Awaitable[bytes]]

NO_WORKER = "no worker can be reached; they are starting, or have failed"


@dataclass(frozen=True, slots=True)
class ForwardLimits:
    """`max_in_flight` ModelInfer calls at once, 0 for no cap; `timeout_seconds` for calls without a deadline."""

    max_in_flight: int
    timeout_seconds: float


class Forwarder:
    """Sends calls to workers. All state belongs to the gateway's loop; `in_flight` may be read from any thread."""

    def __init__(self, discovery: Discovery, selector: Selector, limits: ForwardLimits, recorder: Recorder) -> None:
        self.in_flight = 0
        self._discovery, self._selector, self._limits = discovery, selector, limits
        self._recorder, self._clock = recorder, recorder.clock

    def deadline_ns(self, context: CallContext) -> int:
        """The call's absolute deadline: the client's, else the configured one from now."""
        if context.deadline_ns is not None:
            return context.deadline_ns
        return self._clock.now_ns() + round(self._limits.timeout_seconds * NS_PER_SECOND)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """One of the `max_in_flight` places.

        Raises:
            ResourceExhausted: all are taken.
        """
        cap = self._limits.max_in_flight
        if cap and self.in_flight >= cap:
            self._recorder.record_shed()
            raise ResourceExhausted(f"{self.in_flight} requests are in flight, and no more than {cap} are admitted")
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def infer(self, model: str, message: bytes, context: CallContext) -> bytes:
        """One inference on one of the model's replicas.

        Raises:
            NodeError: as a worker answered; `Unavailable` where no worker can be reached.
        """
        deadline_ns = self.deadline_ns(context)
        return await self._to_model(
            model,
            lambda replica: replica.infer(context.method, message, deadline_ns=deadline_ns, metadata=context.metadata),
        )

    async def ask(self, model: str, message: bytes, context: CallContext) -> bytes:
        """A question about a model, or with an empty name about the server. Raises as `infer`."""
        deadline_ns = self.deadline_ns(context)
        return await self._to_model(
            model,
            lambda replica: replica.ask(context.method, message, deadline_ns=deadline_ns, metadata=context.metadata),
        )

    async def _to_model(self, model: str, attempt: Attempt) -> bytes:
        """Try the model's replicas in order; where it has none, ask a worker what it says to that."""
        if model and model not in self._discovery.table.replicas:
            await self._discovery.refresh()
        table = self._discovery.table
        if model in table.replicas:
            return await self._first_good(self._order(model, table.replicas[model]), attempt)
        if model in table.listed:
            return await self._first_good(self._order("", table.listed[model]), attempt)
        if table.workers:
            return await self._first_good(self._order("", table.workers), attempt, final=(NotFound,))
        raise Unavailable(NO_WORKER)

    def _order(self, turn: str, workers: Sequence[str]) -> tuple[str, ...]:
        return self._selector.order(turn, workers, self._discovery.outstanding())

    async def _first_good(
        self, order: Sequence[str], attempt: Attempt, final: tuple[type[NodeError], ...] = ()
    ) -> bytes:
        """The first answer that another replica could not better.

        Of failures an UNAVAILABLE outlives a NOT_FOUND: the replica that is away may be the one that has it.
        """
        failure: NodeError | None = None
        losses = 0
        for name in order:
            try:
                return await attempt(self._replica(name))
            except (Unavailable, NotFound) as error:
                if isinstance(error, final):
                    raise
                self._discovery.request_refresh()
                losses += isinstance(error, ConnectionLost)
                if losses == MAX_LOSSES:
                    raise
                if failure is None or isinstance(error, Unavailable):
                    failure = error
        raise failure or Unavailable("no worker can be reached")

    def _replica(self, name: str) -> Replica:
        replica = self._discovery.replicas.get(name)
        if replica is None:  # it left while another was tried
            raise Unavailable(f"{name} is gone")
        return replica

    def __repr__(self) -> str:
        return f"<Forwarder {self.in_flight} inferences in flight>"
