"""Which replica next, and in which order to fail over. Pure decisions over worker names.

Every policy returns the whole order: the chosen replica first, then the rest of the rotation over the sorted list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol


class Selector(Protocol):
    """A policy. Belongs to the gateway's loop."""

    def order(self, model: str, replicas: Sequence[str], outstanding: Mapping[str, int]) -> tuple[str, ...]:
        """The replicas in the order to try them.

        Args:
            model: whose turn it is; empty for calls that any worker can answer.
            replicas: sorted, never empty.
            outstanding: calls in flight per worker, over all models; absent is 0.
        """
        ...


class RoundRobin:
    """Each model's requests go around its replicas.

    State: per model the replica chosen last, by name. A position would point at another worker after the list has
    changed, and a cursor inside the table would start over at every swap: both send a restarted node's traffic to
    the first worker. Names come from workers' indexes alone, so the memory is bounded by the models ever served.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def order(self, model: str, replicas: Sequence[str], outstanding: Mapping[str, int]) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's signature
        """The replica after the one chosen last, then the others in rotation."""
        start = bisect_right(replicas, self._last.get(model, "")) % len(replicas)
        self._last[model] = replicas[start]
        return _rotation(replicas, start)

    def __repr__(self) -> str:
        return f"<RoundRobin {len(self._last)} models>"


class LeastOutstanding:
    """The replica with the fewest calls in flight, ties by name. Holds no state: the loads are given."""

    def order(self, model: str, replicas: Sequence[str], outstanding: Mapping[str, int]) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's signature
        """The least loaded replica, then the others in rotation."""
        loads = [outstanding.get(name, 0) for name in replicas]
        return _rotation(replicas, loads.index(min(loads)))

    def __repr__(self) -> str:
        return "<LeastOutstanding>"


def _rotation(replicas: Sequence[str], start: int) -> tuple[str, ...]:
    return (*replicas[start:], *replicas[:start])


_POLICIES: dict[str, type[RoundRobin | LeastOutstanding]] = {
    "round_robin": RoundRobin,
    "least_outstanding": LeastOutstanding,
}


def selector(mode: str) -> Selector:
    """The policy for `gateway.scheduling.mode`, already checked by the loader.

    Raises:
        KeyError: no such mode.
    """
    return _POLICIES[mode]()
