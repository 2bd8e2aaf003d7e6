"""What was counted becomes strict families with bounded labels."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from reactant_node.errors import StatusCode
from reactant_node.gateway.observe import GatewayStatistics, Recorder, exposition
from reactant_node.gateway.table import WorkerReport, build
from reactant_node.kserve.metadata import IndexEntry
from tests.support.clock import ManualClock


def statistics(metrics_up: dict[str, bool] | None = None) -> GatewayStatistics:
    """Two workers, one ready; some calls."""
    recorder = Recorder(ManualClock())
    for status in (StatusCode.OK, StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED):
        recorder.record("ModelInfer", 'odd "name"\\\n', status, 0.0015)
    recorder.record_worker_call("ModelInfer", "worker0", 0.001)
    recorder.record_shed()
    report = WorkerReport(ready=True, models=(IndexEntry("m", "1", "READY"), IndexEntry("n", "1", "LOADING")))
    return GatewayStatistics(
        calls=recorder.statistics(),
        worker_latencies=recorder.worker_latencies(),
        table=build(1, {"worker0": report}),
        workers=("worker0", "worker1"),
        metrics_up=metrics_up or {},
        in_flight=4,
        max_concurrent=128,
        restarts={"worker1": 3},
    )


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_every_series_of_the_gateway_is_there_and_parses_strictly(accept: str) -> None:
    """Values, labels and upper-case status names, in both formats; the parent's process metrics carry its name."""
    rendered = exposition(accept, [], lambda _: statistics({"worker0": True, "worker1": False}))
    parse = parse_openmetrics if rendered.openmetrics else parse_text
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in parse(rendered.body.decode())
        for sample in metric.samples
    }

    def value(name: str, **labels: str) -> float:
        return values[name, tuple(sorted(labels.items()))]

    odd = 'odd "name"\\\n'
    assert value("gateway_requests_total", rpc="ModelInfer", model=odd, status="OK") == 2
    assert value("gateway_requests_total", rpc="ModelInfer", model=odd, status="RESOURCE_EXHAUSTED") == 1
    assert value("gateway_request_latency_seconds_bucket", rpc="ModelInfer", model=odd, le="0.002") == 3
    assert value("gateway_worker_latency_seconds_count", rpc="ModelInfer", worker="worker0") == 1
    assert value("gateway_routing_table_size") == 1
    assert value("gateway_worker_ready", worker="worker0") == 1
    assert value("gateway_worker_ready", worker="worker1") == 0
    assert value("gateway_worker_metrics_up", worker="worker0") == 1
    assert value("gateway_worker_metrics_up", worker="worker1") == 0
    assert value("gateway_inflight_requests") == 4
    assert value("gateway_max_concurrent_requests") == 128
    assert value("gateway_requests_shed_total") == 1
    assert value("supervisor_child_restarts_total", child="worker1") == 3
    assert value("process_resident_memory_bytes", worker="supervisor") > 0
