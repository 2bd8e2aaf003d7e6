"""What a server counts of the calls it answers: how each ended, and how long it took.

On the hot path: an addition per call. Labels are bounded by whoever measures: `rpc` is a route and `model` a name
from the server's own list, or empty; a name that only a client has ever said never becomes a label.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.errors import NodeError, StatusCode
from reactant_node.telemetry.metrics import HistogramSnapshot, LatencyHistogram


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """All calls so far.

    Attributes:
        requests: by (rpc, model, status).
        latencies: by (rpc, model), the whole time inside the handler.
        shed: calls refused at a concurrency cap; they are among `requests` too.
    """

    requests: Mapping[tuple[str, str, str], int]
    latencies: Mapping[tuple[str, str], HistogramSnapshot]
    shed: int


class Measurement:
    """One call while it is answered: a context manager that counts how it ended. `model` may be set inside."""

    __slots__ = ("_deadline_ns", "_recorder", "_rpc", "_started_ns", "model")

    def __init__(self, recorder: CallRecorder, rpc: str, deadline_ns: int | None) -> None:
        self.model = ""
        self._recorder, self._rpc, self._deadline_ns = recorder, rpc, deadline_ns
        self._started_ns = recorder.clock.now_ns()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        now_ns = self._recorder.clock.now_ns()
        status = _status(error, self._deadline_ns, now_ns)
        self._recorder.record(self._rpc, self.model, status, (now_ns - self._started_ns) / NS_PER_SECOND)


def _status(error: BaseException | None, deadline_ns: int | None, now_ns: int) -> StatusCode:
    if error is None:
        return StatusCode.OK
    if isinstance(error, NodeError):
        return error.status
    if isinstance(error, asyncio.CancelledError):
        # The transport cancels a handler for both reasons; the clock tells them apart.
        expired = deadline_ns is not None and now_ns >= deadline_ns
        return StatusCode.DEADLINE_EXCEEDED if expired else StatusCode.CANCELLED
    return StatusCode.INTERNAL


class CallRecorder:
    """Counts calls. Written by a server's loop, read by scrapes in other threads, under one lock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._latencies: defaultdict[tuple[str, str], LatencyHistogram] = defaultdict(LatencyHistogram)
        self._shed = 0

    def __repr__(self) -> str:
        return f"<CallRecorder {self._requests.total()} calls, {self._shed} shed>"

    def measure(self, rpc: str, deadline_ns: int | None) -> Measurement:
        """A context manager around the answering of one call, whose deadline is absolute on the recorder's clock."""
        return Measurement(self, rpc, deadline_ns)

    def record(self, rpc: str, model: str, status: StatusCode, seconds: float) -> None:
        """A call was answered."""
        with self._lock:
            self._requests[rpc, model, status.name] += 1
            latency = self._latencies[rpc, model]
        latency.observe(seconds)

    def record_shed(self) -> None:
        """A call was refused at the cap."""
        with self._lock:
            self._shed += 1

    def statistics(self) -> CallStatistics:
        """The counts now; from any thread."""
        with self._lock:
            return CallStatistics(
                requests=dict(self._requests),
                latencies={labels: histogram.snapshot() for labels, histogram in self._latencies.items()},
                shed=self._shed,
            )
