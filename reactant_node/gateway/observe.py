"""What the gateway counts, and how it becomes metric families.

Labels are bounded by construction: `rpc` is one of our routes, `worker` one of our workers, and `model` a name that
some worker has listed, or empty.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from reactant_node.clock import Clock
from reactant_node.gateway.table import RoutingTable
from reactant_node.telemetry import federation
from reactant_node.telemetry.calls import CallRecorder, CallStatistics
from reactant_node.telemetry.metrics import (
    HistogramSnapshot,
    LatencyHistogram,
    Metric,
    Rendered,
    family,
    is_openmetrics,
    process_families,
    render,
    with_labels,
)

PARENT = "supervisor"
"""The parent's `worker` label on `process_*` and `python_*`, so that sums over all processes count it once."""


class Recorder(CallRecorder):
    """Counts clients' calls, and beside them the calls to workers.

    It outlives the gateway's loop: when the gateway is restarted inside the node, its counters go on.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._workers_lock = threading.Lock()
        self._worker_latencies: defaultdict[tuple[str, str], LatencyHistogram] = defaultdict(LatencyHistogram)

    def record_worker_call(self, rpc: str, worker: str, seconds: float) -> None:
        """A worker answered a call, or failed it."""
        with self._workers_lock:
            latency = self._worker_latencies[rpc, worker]
        latency.observe(seconds)

    def worker_latencies(self) -> Mapping[tuple[str, str], HistogramSnapshot]:
        """Of single calls to workers, by (rpc, worker); from any thread."""
        with self._workers_lock:
            return {labels: histogram.snapshot() for labels, histogram in self._worker_latencies.items()}


@dataclass(frozen=True, slots=True)
class GatewayStatistics:
    """One moment of the gateway, as a scrape sees it.

    Attributes:
        calls: of clients.
        worker_latencies: of single calls to workers, by (rpc, worker).
        table: the routing table in force.
        workers: names of all workers that the gateway is to have, whether they live or not.
        metrics_up: by worker, whether its metrics came; workers without a metrics port are absent.
        in_flight: ModelInfer calls inside the gateway now.
        max_concurrent: the cap on them; 0 is none.
        restarts: of each child, as the supervisor counts them; empty where there is no supervisor.
    """

    calls: CallStatistics
    worker_latencies: Mapping[tuple[str, str], HistogramSnapshot]
    table: RoutingTable
    workers: tuple[str, ...]
    metrics_up: Mapping[str, bool]
    in_flight: int
    max_concurrent: int
    restarts: Mapping[str, int]


def families(statistics: GatewayStatistics) -> Iterator[Metric]:
    """The gateway's own series."""
    calls, table = statistics.calls, statistics.table
    yield family("gateway_requests_total", calls.requests.items())
    yield family("gateway_request_latency_seconds", calls.latencies.items())
    yield family("gateway_worker_latency_seconds", statistics.worker_latencies.items())
    yield family("gateway_routing_table_size", [((), len(table.replicas))])
    yield family("gateway_worker_ready", [((worker,), worker in table.ready_workers) for worker in statistics.workers])
    yield family("gateway_worker_metrics_up", [((worker,), up) for worker, up in statistics.metrics_up.items()])
    yield family("gateway_inflight_requests", [((), statistics.in_flight)])
    yield family("gateway_max_concurrent_requests", [((), statistics.max_concurrent)])
    yield family("gateway_requests_shed_total", [((), calls.shed)])
    yield family("supervisor_child_restarts_total", [((child,), count) for child, count in statistics.restarts.items()])


def exposition(
    accept: str,
    targets: Sequence[federation.Target],
    statistics: Callable[[Mapping[str, bool]], GatewayStatistics],
) -> Rendered:
    """The node's metrics: the parent's own and every worker's, fetched now. Blocks; not for the gateway's loop.

    Args:
        accept: the scraper's Accept header.
        targets: the workers to ask.
        statistics: the gateway's statistics, given which of the targets answered.
    """
    openmetrics = is_openmetrics(accept)
    fetched = federation.fetch_all(targets, openmetrics=openmetrics)
    up = {worker: answer is not None for worker, answer in fetched.items()}
    process = with_labels(process_families(), {"worker": PARENT})
    own = render(chain(families(statistics(up)), process), accept)
    answers = [answer for answer in fetched.values() if answer is not None]
    merged = federation.merge(
        [federation.parse(own.body.decode(), openmetrics=openmetrics), *answers], openmetrics=openmetrics
    )
    return Rendered(own.content_type, "", merged.encode())
