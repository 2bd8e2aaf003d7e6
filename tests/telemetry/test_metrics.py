"""Families from the one table, and the expositions they become."""

from __future__ import annotations

import gzip
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from reactant_node.telemetry.metrics import (
    LATENCY_BUCKETS_SECONDS,
    SERIES,
    HistogramSnapshot,
    Kind,
    LatencyHistogram,
    Rendered,
    compressed,
    family,
    is_openmetrics,
    process_families,
    render,
    with_labels,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def filled(name: str) -> Metric:
    """A family of a series with one sample."""
    series = SERIES[name]
    value = HistogramSnapshot((1,) * 15, 2.5) if series.kind is Kind.HISTOGRAM else 3
    return family(name, [(tuple(f"a {label}" for label in series.labels), value)])


def parsed(rendered: Rendered) -> list[Metric]:
    """By prometheus_client's strict parser of the format."""
    parse = parse_openmetrics if rendered.openmetrics else parse_text
    return list(parse(rendered.body.decode()))


def test_buckets_double_from_a_millisecond_to_eight_seconds() -> None:
    """The buckets are 0.001 * 2^k seconds for k = 0..13."""
    assert LATENCY_BUCKETS_SECONDS[0] == 0.001
    assert LATENCY_BUCKETS_SECONDS[-1] == 8.192
    assert len(LATENCY_BUCKETS_SECONDS) == 14


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_series_of_the_table_renders_and_parses_strictly(accept: str) -> None:
    """Name, kind, help and labels of every series are legal in both formats."""
    rendered = render([filled(name) for name in SERIES], accept)
    metrics = parsed(rendered)
    assert {metric.name for metric in metrics} == {name.removesuffix("_total") for name in SERIES}
    for metric in metrics:
        assert metric.documentation
        assert metric.samples


def test_a_series_that_is_not_in_the_table_is_an_error() -> None:
    """A misspelt series cannot be exported."""
    with pytest.raises(KeyError, match="worker_request_total"):
        family("worker_request_total", [])


@pytest.mark.parametrize("labels", [(), ("a",), ("a", "b", "c"), "ab"])
def test_label_values_match_the_tables_labels(labels: tuple[str, ...] | str) -> None:
    """Too few or too many label values, or a bare string, are an error and never a shifted label."""
    with pytest.raises(ValueError, match=r"worker_requests_total.*model.*status"):
        family("worker_requests_total", [(labels, 1)])


def test_a_value_fits_the_series_kind() -> None:
    """A histogram takes a snapshot and nothing else does."""
    with pytest.raises(TypeError):
        family("worker_request_latency_seconds", [(("m",), 1.0)])
    with pytest.raises(TypeError):
        family("worker_queue_depth", [(("m",), HistogramSnapshot((0,) * 15, 0.0))])


def test_an_observation_on_a_bound_belongs_to_its_bucket() -> None:
    """Bounds are upper and inclusive, as `le` says; what is above all of them is counted in +Inf."""
    histogram = LatencyHistogram()
    for seconds in (0.0, 0.001, 0.0011, 8.192, 9.0):
        histogram.observe(seconds)
    snapshot = histogram.snapshot()
    assert snapshot.counts == (2, 1, *(0,) * 11, 1, 1)
    assert snapshot.sum_seconds == pytest.approx(17.1941)
    assert repr(histogram) == "<LatencyHistogram 5 observations, 17.194 s>"


@given(st.lists(st.floats(min_value=0, max_value=20)))
def test_exported_buckets_are_cumulative(durations: list[float]) -> None:
    """Each bucket counts everything up to its bound, and +Inf everything: the strict parser checks the rest."""
    histogram = LatencyHistogram()
    for seconds in durations:
        histogram.observe(seconds)
    rendered = render([family("worker_request_latency_seconds", [(("m",), histogram.snapshot())])], OPENMETRICS)
    (metric,) = parsed(rendered)
    for sample in metric.samples:
        if sample.name.endswith("_bucket"):
            assert sample.value == sum(seconds <= float(sample.labels["le"]) for seconds in durations)


def test_concurrent_observations_are_all_counted() -> None:
    """Threads observing at once lose nothing."""
    histogram = LatencyHistogram()

    def observe() -> None:
        for _ in range(2_000):
            histogram.observe(0.002)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.snapshot().count == 8_000


def test_constant_labels_reach_every_sample_and_do_not_replace_its_own() -> None:
    """`with_labels` adds to all samples, histograms and process_* included; a sample's own label wins."""
    families = [filled("worker_request_latency_seconds"), filled("gateway_worker_ready"), *process_families()]
    rendered = render(with_labels(families, {"worker": "worker0", "gpu": "GPU-1"}))
    for metric in parse_text(rendered.body.decode()):
        for sample in metric.samples:
            assert sample.labels["gpu"] == "GPU-1"
            assert sample.labels["worker"] == ("a worker" if metric.name == "gateway_worker_ready" else "worker0")


def test_process_metrics_are_those_of_this_process() -> None:
    """`process_*` and `python_*` are there without the global registry."""
    names = {metric.name for metric in process_families()}
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "python_info", "python_gc_collections"} <= names


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_label_value_survives(value: str) -> None:
    """Quotes, backslashes, newlines and anything else in a label come back as they were."""
    rendered = render([family("worker_queue_depth", [((value,), 1)])])
    (metric,) = parse_text(rendered.body.decode())
    assert metric.samples[0].labels == {"model": value}


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (OPENMETRICS, True),
        ("application/openmetrics-text", True),
        (f"{OPENMETRICS};q=0.8,text/plain;version=0.0.4;q=0.5", True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=x", False),
        ("text/plain; version=", False),
        (";;=,=;", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, openmetrics: bool) -> None:
    """OpenMetrics for who asks for it, else text 0.0.4; nonsense in the header is no error."""
    rendered = render([filled("worker_queue_depth")], accept)
    assert rendered.openmetrics is openmetrics is is_openmetrics(accept)
    assert rendered.body.endswith(b"# EOF\n") is openmetrics
    assert openmetrics or rendered.content_type.startswith("text/plain; version=0.0.4")


def test_a_folded_accept_header_puts_no_line_break_into_ours() -> None:
    """The version that prometheus_client echoes cannot carry a header of its own."""
    rendered = render([], "application/openmetrics-text; version=1.0.0\r\n Set-Cookie: a=b")
    assert "\n" not in rendered.content_type


def test_gzip_is_used_for_who_accepts_it() -> None:
    """Accept-Encoding decides; the body is the same."""
    plain = render([filled("worker_queue_depth")])
    assert compressed(plain, "deflate") is plain
    packed = compressed(plain, "deflate, gzip;q=1.0")
    assert packed.content_encoding == "gzip"
    assert gzip.decompress(packed.body) == plain.body
