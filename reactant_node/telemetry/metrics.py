"""Every series the node exports, and how they become an exposition. The only door to prometheus_client.

Theory. Engines count; at a scrape a collector reads their frozen `statistics()` and calls `family(name, samples)`
for each series. Kind, help text and label names come from the one table `SERIES`, so that a series looks the
same wherever it is filled, and a wrong name or a forgotten label is an error and not a second series. Nothing is
registered in prometheus_client's global registry. The hot path knows one thing of all this: `LatencyHistogram`.

    def collect() -> Iterator[Metric]:
        yield family("worker_queue_depth", [(("resnet",), 3)])
        yield family("worker_request_latency_seconds", [(("resnet",), histogram.snapshot())])

    rendered = render(with_labels(chain(collect(), process_families()), {"worker": "worker0"}), accept)

Rejected: prometheus_client's own Counter and Histogram objects. They hold state beside the engine's, cost a lock
and a label look-up per event, and a series once touched never leaves.
"""

from __future__ import annotations

import gzip
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

__all__ = [
    "LATENCY_BUCKETS_SECONDS",
    "SERIES",
    "HistogramSnapshot",
    "Kind",
    "LatencyHistogram",
    "Metric",
    "Rendered",
    "Series",
    "compressed",
    "family",
    "is_openmetrics",
    "process_families",
    "render",
    "with_labels",
]

LATENCY_BUCKETS_SECONDS: tuple[float, ...] = tuple(0.001 * 2**k for k in range(14))
"""1 ms to 8.192 s, doubling: the reference's buckets, the same everywhere so that histograms can be added up."""

_BOUNDS = (*(repr(bound) for bound in LATENCY_BUCKETS_SECONDS), "+Inf")


class Kind(Enum):
    """What a series is to Prometheus."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True, slots=True)
class Series:
    """One row of the table: everything about a series but its values."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

SERIES: Mapping[str, Series] = {
    # A worker's own. `worker`, and `gpu` on a CUDA worker, are added to every one by `with_labels`.
    "worker_requests_total": Series(_C, "ModelInfer calls answered, by gRPC status.", ("model", "status")),
    "worker_request_latency_seconds": Series(_H, "Time inside the ModelInfer handler.", ("model",)),
    "worker_dispatch_total": Series(_C, "Executions; one may carry several requests.", ("model",)),
    "worker_compute_seconds_total": Series(_C, "Execution time, weight loads excluded.", ("model",)),
    "worker_requests_served_total": Series(_C, "Requests inside executed batches.", ("model",)),
    "worker_rows_served_total": Series(_C, "Rows on the batch axis, padding excluded.", ("model",)),
    "worker_queue_depth": Series(_G, "Requests queued now.", ("model",)),
    "worker_queue_wait_seconds": Series(_G, "Wait in the queue, over the newest 1024.", ("model", "quantile")),
    "worker_model_resident": Series(_G, "1 where the weights are on the device.", ("model",)),
    "worker_model_pinned": Series(_G, "1 where the weights never leave the device.", ("model",)),
    "worker_model_weight_bytes": Series(_G, "Size of the weights.", ("model",)),
    "worker_model_max_batch_size": Series(_G, "Rows one execution may carry; 0 is no limit.", ("model",)),
    "worker_models_loaded": Series(_G, "Models that are ready."),
    "worker_models_resident": Series(_G, "Models whose weights are on the device."),
    "worker_resident_weight_bytes": Series(_G, "Weights on the device."),
    "worker_info": Series(
        _G, "Identity; always 1.", ("device_ordinal", "control_mode", "discipline", "residency_mode")
    ),
    "worker_inflight_requests": Series(_G, "Calls inside handlers now."),
    "worker_max_concurrent_requests": Series(_G, "Calls admitted at once; 0 is no cap."),
    "worker_requests_shed_total": Series(_C, "Calls refused at the cap."),
    # The gateway's own. `worker` names the worker a sample speaks of.
    "gateway_requests_total": Series(
        _C, "Calls answered, by gRPC status; the model is empty where no worker knows it.", ("rpc", "model", "status")
    ),
    "gateway_request_latency_seconds": Series(_H, "Time of a call inside the gateway.", ("rpc", "model")),
    "gateway_worker_latency_seconds": Series(_H, "Time of the calls to a worker.", ("rpc", "worker")),
    "gateway_routing_table_size": Series(_G, "Models that some worker can run."),
    "gateway_worker_ready": Series(_G, "1 where the worker said that it is ready when last asked.", ("worker",)),
    "gateway_worker_metrics_up": Series(_G, "1 where this scrape got the worker's metrics.", ("worker",)),
    "gateway_inflight_requests": Series(_G, "ModelInfer calls inside the gateway now."),
    "gateway_max_concurrent_requests": Series(_G, "ModelInfer calls admitted at once; 0 is no cap."),
    "gateway_requests_shed_total": Series(_C, "ModelInfer calls refused at the cap."),
    # The supervisor's own.
    "supervisor_child_restarts_total": Series(_C, "Restarts of a child since the node started.", ("child",)),
}
"""All series by name. A counter's name ends in `_total`."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A latency histogram at one moment.

    Attributes:
        counts: observations per bucket, not cumulative; the last entry is above every bound.
        sum_seconds: all observations added up.
    """

    counts: tuple[int, ...]
    sum_seconds: float

    @property
    def count(self) -> int:
        """Observations in all."""
        return sum(self.counts)


class LatencyHistogram:
    """Counts durations into `LATENCY_BUCKETS_SECONDS`.

    State: written by any thread, read by any thread, under one lock that is held for an addition (about 0.3 us a
    call in all).
    """

    __slots__ = ("_counts", "_lock", "_sum_seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * len(_BOUNDS)
        self._sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        bucket = bisect_left(LATENCY_BUCKETS_SECONDS, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum_seconds += seconds

    def snapshot(self) -> HistogramSnapshot:
        """The counts now, consistent with each other."""
        with self._lock:
            return HistogramSnapshot(tuple(self._counts), self._sum_seconds)

    def __repr__(self) -> str:
        now = self.snapshot()
        return f"<LatencyHistogram {now.count} observations, {now.sum_seconds:.3f} s>"


def family(name: str, samples: Iterable[tuple[Sequence[str], float | HistogramSnapshot]]) -> Metric:
    """The metric family of a series in `SERIES`.

    Args:
        name: a key of `SERIES`.
        samples: label values, in the table's order, and the value: a number, or for a histogram its snapshot.

    Raises:
        KeyError: no such series.
        ValueError: a sample has more or fewer label values than the series has labels.
    """
    series = SERIES[name]
    metric = _empty_family(name, series)
    for values, value in samples:
        _check_labels(name, series, values)
        if isinstance(metric, HistogramMetricFamily):
            _add_histogram(metric, values, value)
        else:
            metric.add_metric(values, _number(value))
    return metric


def _empty_family(name: str, series: Series) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    match series.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(name, series.help, labels=series.labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(name, series.help, labels=series.labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name, series.help, labels=series.labels)


def _check_labels(name: str, series: Series, values: Sequence[str]) -> None:
    if isinstance(values, str) or len(values) != len(series.labels):
        raise ValueError(f"{name}: got label values {values!r}; it has the labels {series.labels!r}")


def _number(value: float | HistogramSnapshot) -> float:
    if isinstance(value, HistogramSnapshot):
        raise TypeError("got a histogram's snapshot for a series that is a single number")
    return value


def _add_histogram(metric: HistogramMetricFamily, values: Sequence[str], value: float | HistogramSnapshot) -> None:
    if not isinstance(value, HistogramSnapshot):
        raise TypeError(f"{metric.name}: got {value!r}; a histogram takes a HistogramSnapshot")
    cumulative = zip(_BOUNDS, accumulate(value.counts), strict=True)
    metric.add_metric(values, buckets=list(cumulative), sum_value=value.sum_seconds)


def with_labels(families: Iterable[Metric], labels: Mapping[str, str]) -> Iterator[Metric]:
    """The same families with constant labels on every sample; a sample's own label of the same name wins."""
    for metric in families:
        labelled = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        labelled.samples = [sample._replace(labels={**labels, **sample.labels}) for sample in metric.samples]
        yield labelled


def process_families() -> Iterator[Metric]:
    """`process_*` and `python_*` of this process, read now."""
    garbage = CollectorRegistry()
    GCCollector(registry=garbage)
    yield from ProcessCollector(registry=None).collect()
    yield from PlatformCollector(registry=None).collect()
    yield from garbage.collect()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A reply to a scrape. `content_encoding` is empty where the body is not compressed."""

    content_type: str
    content_encoding: str
    body: bytes

    @property
    def openmetrics(self) -> bool:
        """OpenMetrics text, and not the older Prometheus text."""
        return self.content_type.startswith("application/openmetrics-text")


class _Families(Collector):
    """What prometheus_client's encoders read from: they take a collector and call `collect` once."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def is_openmetrics(accept: str) -> bool:
    """Whether `render` answers this Accept header in OpenMetrics text."""
    return render((), accept).openmetrics


def render(families: Iterable[Metric], accept: str = "") -> Rendered:
    """Encode families as the client's Accept header asks: text 0.0.4, or OpenMetrics. Not compressed.

    Families without samples are left out.
    """
    # A folded header keeps its line break in Python's parser, and the version in it is echoed in ours.
    encode, content_type = _encoder(" ".join(accept.split()))
    return Rendered(content_type, "", encode(_Families(metric for metric in families if metric.samples)))


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except TypeError:  # a version such as "x" does not compare with a number
        return choose_encoder("")


def compressed(rendered: Rendered, accept_encoding: str) -> Rendered:
    """The same reply, gzipped where the client's Accept-Encoding header names gzip."""
    if not gzip_accepted(accept_encoding):
        return rendered
    # Level 1: a scrape is read once, on the next machine.
    return Rendered(rendered.content_type, "gzip", gzip.compress(rendered.body, compresslevel=1))
