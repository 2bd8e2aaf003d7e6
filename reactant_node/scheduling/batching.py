"""How many of the waiting requests one execution serves, and at which size. Plans only: nothing is moved here.

The input is a `Window`: the rows of the leading run of a queue, the requests that may share an execution. A batch is
always a prefix of it, so order is kept and the oldest request always makes progress, also one that alone is larger
than every limit. Requests are never split.

An ONNX graph with a symbolic batch axis takes any size, so by default the batch size is the rows taken. With
`compiled_sizes` only these run: the largest that the waiting rows fill; where they fill none, the smallest, padded.
A model that may not coalesce runs request by request and is never padded: nothing has shown that its rows do not see
each other.

Nothing waits for company by default. `max_queue_delay_ns` lets an incomplete batch wait, as Triton's dynamic batcher
does: until it has a preferred size, until nothing can join it any more, or until its oldest request has waited that
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one model allows. The default is a model that runs request by request.

    Attributes:
        coalescable: rows of different requests may share an execution.
        max_rows: most rows that are joined in one execution; None: as many as wait.
        compiled_sizes: sizes to run at, positive; empty: any size.
        preferred_sizes: totals of rows that are worth an execution at once; empty: none is preferred.
        max_queue_delay_ns: how long the oldest request may wait for others to join it.
    """

    coalescable: bool = False
    max_rows: int | None = None
    compiled_sizes: tuple[int, ...] = ()
    preferred_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0

    @property
    def most_rows(self) -> float:
        """Rows beyond which a batch of several requests does not grow; infinite where nothing bounds it."""
        return min(self.max_rows or inf, max(self.compiled_sizes, default=inf))

    @property
    def padded(self) -> bool:
        """Batches are filled up to a compiled size."""
        return self.coalescable and bool(self.compiled_sizes)

    @property
    def effective_max_batch_size(self) -> int:
        """What is reported as the model's largest batch; 0: it does not coalesce, or nothing bounds it."""
        return int(self.most_rows) if self.coalescable and self.most_rows < inf else 0


@dataclass(frozen=True, slots=True)
class Window:
    """The leading run of a queue: requests that may share an execution, until their rows reach `most_rows`.

    Attributes:
        rows: of each request, front first; at least one request.
        closed: nothing that arrives later could join.
    """

    rows: tuple[int, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class BatchShape:
    """One execution, planned.

    Attributes:
        requests: how many to take from the front; at least 1.
        batch_size: rows to run at; the rows taken, or a compiled size from there up.
        complete: nothing would be gained by waiting for more.
    """

    requests: int
    batch_size: int
    complete: bool


def plan_batch(window: Window, limits: BatchLimits) -> BatchShape:
    """The batch that goes if this window's model is dispatched now."""
    preferred = _preferred_requests(window.rows, limits.preferred_sizes)
    rows = window.rows[:preferred] if preferred else window.rows
    size = min(sum(rows), limits.most_rows)
    if limits.padded:
        size = _compiled_size(size, rows[0], limits.compiled_sizes)
    requests = _fitting_requests(rows, min(size, limits.most_rows))
    batch_size = int(size) if limits.padded else sum(rows[:requests])
    return BatchShape(requests, batch_size, complete=bool(preferred) or window.closed)


def hold_until_ns(limits: BatchLimits, front_enqueued_ns: int, earliest_deadline_ns: int | None, cost_ns: float) -> int:
    """When an incomplete batch has to go at the latest; a time that has passed means now.

    Waiting never makes a request late that had time: it ends two runs before the queue's earliest deadline, one to
    run and one because the cost is an average.
    """
    delayed_ns = front_enqueued_ns + limits.max_queue_delay_ns
    if earliest_deadline_ns is None:
        return delayed_ns
    return min(delayed_ns, earliest_deadline_ns - round(2 * cost_ns))


def _preferred_requests(rows: Sequence[int], sizes: Sequence[int]) -> int:
    """Length of the longest prefix that makes a preferred size exactly; 0: none does."""
    hits = [count for count, total in enumerate(accumulate(rows), start=1) if total in sizes]
    return hits[-1] if hits else 0


def _compiled_size(available: float, front: int, sizes: Sequence[int]) -> int:
    """The largest size that the rows fill, else the smallest; one that holds the front request in any case."""
    size = max((size for size in sizes if size <= available), default=min(sizes))
    if front <= size:
        return size
    return min((size for size in sizes if size >= front), default=front)


def _fitting_requests(rows: Sequence[int], bound: float) -> int:
    """Length of the longest prefix within the bound; the front request always goes."""
    fitting = sum(1 for total in accumulate(rows) if total <= bound)
    return max(1, fitting)
