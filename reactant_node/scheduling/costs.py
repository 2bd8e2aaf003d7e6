"""What executions cost: an estimate per batch size, and how much of the device each model had lately.

Both are learned from measured runs and forget: the estimate with each new run (alpha), the usage with time
(half-life). Weight loads are not part of a run and must not be counted in.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from math import exp2

UNMEASURED_COST_NS = 10_000_000.0
"""Stands in for a model nothing has been measured of: 10 ms, the order of one inference. It is the same for all, so
among unmeasured models the other terms decide."""

SIZES_KEPT = 256
"""Batch sizes remembered per model, the most recently measured ones. Without compiled sizes a client chooses the
sizes, and could make the table grow for ever."""


class CostTable:
    """Estimated nanoseconds of one model's executions, per batch size. Belongs to the scheduler.

    A size that was never measured lies on the line between its measured neighbours, and costs what the nearest one
    costs beyond them: any size may come, and falling back to the stand-in for each new one would make requests look
    hopeless, or cheap, whose like has been measured hundreds of times.
    """

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._by_size: OrderedDict[int, float] = OrderedDict()
        self._sizes: list[int] = []

    def record(self, batch_size: int, compute_ns: int) -> None:
        """Learn from one run. The first of a size is taken as it is, later ones with weight alpha."""
        known = self._by_size.get(batch_size)
        if known is None:
            insort(self._sizes, batch_size)
            self._by_size[batch_size] = float(compute_ns)
            self._forget_oldest()
        else:
            self._by_size[batch_size] = self._alpha * compute_ns + (1 - self._alpha) * known
            self._by_size.move_to_end(batch_size)

    def estimate_ns(self, batch_size: int) -> float:
        """What a run of this size is expected to take."""
        known = self._by_size.get(batch_size)
        if known is not None:
            return known
        if not self._sizes:
            return UNMEASURED_COST_NS
        above = bisect_left(self._sizes, batch_size)
        low, high = self._sizes[max(above - 1, 0)], self._sizes[min(above, len(self._sizes) - 1)]
        if low == high:
            return self._by_size[low]
        part = (batch_size - low) / (high - low)
        return (1 - part) * self._by_size[low] + part * self._by_size[high]

    def clear(self) -> None:
        """Forget everything: the model's graph is another one now."""
        self._by_size.clear()
        self._sizes.clear()

    def snapshot(self) -> dict[int, float]:
        """Measured sizes and their estimates in nanoseconds, by size."""
        return {size: self._by_size[size] for size in self._sizes}

    def _forget_oldest(self) -> None:
        if len(self._sizes) > SIZES_KEPT:
            oldest, _ = self._by_size.popitem(last=False)
            del self._sizes[bisect_left(self._sizes, oldest)]


class UsageAverage:
    """One model's device time, where what lies a half-life back counts half. Belongs to the scheduler."""

    def __init__(self, halflife_ns: float) -> None:
        self._halflife_ns = halflife_ns
        self._value_ns = 0.0
        self._at_ns = 0

    def add(self, compute_ns: int, now_ns: int) -> None:
        """Charge one run that ended now."""
        self._value_ns = self.at_ns(now_ns) + compute_ns
        self._at_ns = now_ns

    def at_ns(self, now_ns: int) -> float:
        """The usage as seen from now."""
        elapsed_ns = max(0, now_ns - self._at_ns)
        return self._value_ns * exp2(-elapsed_ns / self._halflife_ns)
