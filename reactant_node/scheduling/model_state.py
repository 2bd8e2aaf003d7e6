"""What the scheduler keeps of one model, and what it does with one model alone: its queue, costs, usage and counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Generic, TypeVar

from reactant_node.clock import NS_PER_SECOND
from reactant_node.config.schema import ModelPolicy, SchedulerConfig
from reactant_node.scheduling.batching import BatchLimits, hold_until_ns
from reactant_node.scheduling.costs import CostTable, UsageAverage
from reactant_node.scheduling.queues import RequestQueue, Ticket

T = TypeVar("T")

WAITS_KEPT = 1024
"""Queue waits remembered per model for the quantiles."""

SHEDS_BEFORE_PROBE = 32
"""Batches of one model that edf may shed whole, in a row, before one runs to correct the estimate. An overload seldom
sheds that many without running one, so a probe there is rare; a wrong estimate costs that many answers at most."""

EXACT_SIZES = 1024
"""Batch sizes counted each on its own; larger ones at the next power of two, so that clients cannot make it grow."""


def counted_size(batch_size: int) -> int:
    """The size that a batch is counted under: its own up to `EXACT_SIZES`, else the next power of two."""
    return batch_size if batch_size <= EXACT_SIZES else 1 << (batch_size - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """One execution to be made.

    Attributes:
        model: its name now.
        tickets: in the order of their rows; at least one. They are out of the queue.
        batch_size: rows to run at, at least `rows`.
    """

    model: str
    tickets: tuple[Ticket[T], ...]
    batch_size: int

    @property
    def rows(self) -> int:
        """Rows of all tickets."""
        return sum(ticket.rows for ticket in self.tickets)

    @property
    def padding(self) -> int:
        """Rows to be filled up, whose outputs nobody gets."""
        return self.batch_size - self.rows


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model, cumulative since it was added where it counts.

    Attributes:
        queue_depth: waiting requests.
        weight: relative to the other models'.
        share: its part of all weights, over 0 to 1.
        used: its part of all recent device time, 0 to 1.
        usage_ns: recent device time, faded.
        costs_ns: estimated time per measured batch size.
        waits_ns: the newest waits, from arrival to dispatch, oldest first.
        batch_sizes: executions per batch size, padding included; sizes above 1024 at the next power of two.
        requests: dispatched.
        rows: dispatched, padding excluded.
        expired: requests dropped for their deadline.
        withdrawn: requests their callers took back.
        refused: requests a full queue turned away.
        effective_max_batch_size: most rows that are joined; 0: it does not coalesce, or nothing bounds it.
    """

    queue_depth: int
    weight: float
    share: float
    used: float
    usage_ns: float
    costs_ns: Mapping[int, float]
    waits_ns: tuple[int, ...]
    batch_sizes: Mapping[int, int]
    requests: int
    rows: int
    expired: int
    withdrawn: int
    refused: int
    effective_max_batch_size: int

    def wait_ns(self, quantile: float) -> int:
        """A quantile of the waits by nearest rank, 0 where none is known. Sorts: call it outside the lock."""
        if not self.waits_ns:
            return 0
        # Rounded first: 0.07 * 100 is 7.000000000000001 in binary, and would be rank 8.
        rank = ceil(round(quantile * len(self.waits_ns), 6))
        return sorted(self.waits_ns)[max(rank, 1) - 1]


class ModelState(Generic[T]):
    """One model inside a scheduler, which alone writes it.

    It does not know its name, so that renaming a model touches nothing here.
    """

    def __init__(self, limits: BatchLimits, policy: ModelPolicy, config: SchedulerConfig) -> None:
        self.queue: RequestQueue[T] = RequestQueue(limits)
        self.costs = CostTable(config.cost_ema_alpha)
        self.usage = UsageAverage(config.ema_halflife_seconds * NS_PER_SECOND)
        self.refused = self.withdrawn = 0
        self._edf = config.discipline == "edf"
        self._waits_ns: deque[int] = deque(maxlen=WAITS_KEPT)
        self._batch_sizes: Counter[int] = Counter()
        self._requests = self._rows = self._expired = 0
        self._sheds_in_a_row = 0
        self._declared_limits = limits
        self.weight = policy.weight
        self.apply_limits(limits, policy)

    def __repr__(self) -> str:
        return f"<ModelState {len(self.queue)} queued, weight {self.weight:g}, {self._requests} dispatched>"

    def apply_limits(self, limits: BatchLimits, policy: ModelPolicy) -> None:
        """Take what the model allows, and of both row limits the narrower."""
        bounds = [bound for bound in (limits.max_rows, policy.max_batch_size) if bound]
        self._declared_limits = limits
        self.queue.limits = replace(limits, max_rows=min(bounds, default=None))

    def apply_policy(self, policy: ModelPolicy) -> None:
        """Take weight and row limit from the configuration."""
        self.weight = policy.weight
        self.apply_limits(self._declared_limits, policy)

    @property
    def next_cost_ns(self) -> float:
        """What the batch that would go now is expected to take. The queue must not be empty."""
        return self.costs.estimate_ns(self.queue.shape.batch_size)

    def hold_until_ns(self) -> int:
        """When its next batch has to go at the latest; 0: it waits for nobody. The queue must not be empty."""
        queue = self.queue
        if queue.shape.complete or not queue.limits.max_queue_delay_ns:
            return 0
        return hold_until_ns(queue.limits, queue.front.enqueued_ns, queue.earliest_deadline_ns(), self.next_cost_ns)

    def take_late(self, now_ns: int) -> list[Ticket[T]]:
        """Take out every request whose deadline has come."""
        late = self.queue.take_late(now_ns)
        self._expired += len(late)
        return late

    def take_batch(self, name: str, now_ns: int) -> tuple[Batch[T] | None, list[Ticket[T]]]:
        """Take the next batch out of the queue: what runs, and what edf sheds since it would be late when that ends."""
        shape, end_ns = self.queue.shape, now_ns + self.next_cost_ns
        taken = self.queue.take(shape.requests)
        shed = {ticket for ticket in taken if self._is_hopeless(ticket, end_ns)}
        self._expired += len(shed)
        if len(shed) == len(taken):
            self._sheds_in_a_row += 1
            return None, taken
        kept = tuple(ticket for ticket in taken if ticket not in shed)
        batch_size = shape.batch_size if self.queue.limits.padded else sum(ticket.rows for ticket in kept)
        return self._dispatched(Batch(name, kept, batch_size), now_ns), [it for it in taken if it in shed]

    def record(self, batch_size: int, compute_ns: int, now_ns: int, *, succeeded: bool) -> None:
        """Charge a run that has ended, and learn its cost where it succeeded."""
        self.usage.add(compute_ns, now_ns)
        self._batch_sizes[counted_size(batch_size)] += 1
        if succeeded:
            self.costs.record(batch_size, compute_ns)

    def snapshot(self, now_ns: int, share: float, used: float) -> ModelSnapshot:
        """Frozen, as seen from now."""
        return ModelSnapshot(
            queue_depth=len(self.queue),
            weight=self.weight,
            share=share,
            used=used,
            usage_ns=self.usage.at_ns(now_ns),
            costs_ns=MappingProxyType(self.costs.snapshot()),
            waits_ns=tuple(self._waits_ns),
            batch_sizes=MappingProxyType(dict(self._batch_sizes)),
            requests=self._requests,
            rows=self._rows,
            expired=self._expired,
            withdrawn=self.withdrawn,
            refused=self.refused,
            effective_max_batch_size=self.queue.limits.effective_max_batch_size,
        )

    def _is_hopeless(self, ticket: Ticket[T], end_ns: float) -> bool:
        if not self._edf or ticket.committed or ticket.deadline_ns is None:
            return False
        return end_ns >= ticket.deadline_ns and self._sheds_in_a_row < SHEDS_BEFORE_PROBE

    def _dispatched(self, batch: Batch[T], now_ns: int) -> Batch[T]:
        self._sheds_in_a_row = 0
        self._requests += len(batch.tickets)
        self._rows += batch.rows
        self._waits_ns.extend(max(0, now_ns - ticket.enqueued_ns) for ticket in batch.tickets)
        return batch
