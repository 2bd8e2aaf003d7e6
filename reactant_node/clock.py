"""Time as a thing that is handed in.

Pure code takes `now` as an argument. Shells own a `Clock`; tests own a manual one and never sleep.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now_ns(self) -> int:
        """Nanoseconds on the monotonic clock of this host."""
        ...


class MonotonicClock:
    """The one real clock. All processes of a host share its zero, so its values may cross a pipe."""

    def now_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC."""
        return time.monotonic_ns()


NS_PER_SECOND = 1_000_000_000
