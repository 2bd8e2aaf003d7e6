"""A clock that moves when a test says so."""

from __future__ import annotations

from reactant_node.clock import NS_PER_SECOND


class ManualClock:
    """Starts at a fixed instant; never moves by itself."""

    def __init__(self, start_ns: int = 1_000 * NS_PER_SECOND) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The instant last set."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self._now_ns += round(seconds * NS_PER_SECOND)
