"""Many expositions become one that strict parsers take, and bad ones cost only themselves."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from reactant_node.telemetry import federation
from reactant_node.telemetry.federation import Target, fetch_all, merge, parse
from reactant_node.telemetry.metrics import (
    SERIES,
    HistogramSnapshot,
    Kind,
    family,
    process_families,
    render,
    with_labels,
)

ACCEPT = {True: "application/openmetrics-text", False: ""}
FORMATS = pytest.mark.parametrize("openmetrics", [True, False])


def strict(text: str, *, openmetrics: bool) -> dict[str, Metric]:
    """Parsed by prometheus_client, each family once."""
    metrics = list((parse_openmetrics if openmetrics else parse_text)(text))
    names = [metric.name for metric in metrics]
    assert len(names) == len(set(names)), "a family is declared twice"
    return {metric.name: metric for metric in metrics}


def worker_text(name: str, *, openmetrics: bool, value: int = 2) -> str:
    """What a worker of that name exports."""
    histogram = HistogramSnapshot((value, *(0,) * 13, 1), 0.5)
    families = [
        family(series, [(("m",) * len(row.labels), histogram if row.kind is Kind.HISTOGRAM else value)])
        for series, row in SERIES.items()
        if series.startswith("worker_")
    ]
    labelled = with_labels([*families, *process_families()], {"worker": name, "gpu": "0"})
    return render(labelled, ACCEPT[openmetrics]).body.decode()


def samples(metric: Metric, suffix: str = "") -> dict[str, float]:
    """Value by worker, of the samples with a suffix."""
    return {sample.labels["worker"]: sample.value for sample in metric.samples if sample.name.endswith(suffix)}


@FORMATS
def test_two_workers_and_the_parent_become_one_exposition(openmetrics: bool) -> None:
    """Each family is declared once, with everybody's samples under it, and sums are the sums of the parts."""
    own = render(with_labels(process_families(), {"worker": "supervisor"}), ACCEPT[openmetrics]).body.decode()
    parts = [
        parse(own, openmetrics=openmetrics),
        *(
            parse(worker_text(name, openmetrics=openmetrics, value=value), openmetrics=openmetrics, worker=name)
            for name, value in (("worker0", 2), ("worker1", 5))
        ),
    ]
    text = merge(parts, openmetrics=openmetrics)
    assert text.count("# TYPE worker_request_latency_seconds ") == 1
    merged = strict(text, openmetrics=openmetrics)
    assert samples(merged["worker_requests"]) == {"worker0": 2, "worker1": 5}
    assert samples(merged["worker_request_latency_seconds"], "_count") == {"worker0": 3, "worker1": 6}
    assert set(samples(merged["process_resident_memory_bytes"])) == {"supervisor", "worker0", "worker1"}


def test_a_worker_is_named_as_the_gateway_knows_it() -> None:
    """Two hosts may both have a `worker0`: the label is replaced, and a lookalike in a value is not."""
    text = worker_text("worker0", openmetrics=True).replace('model="m"', 'model=",worker=\\"x\\",worker="')
    parts = [parse(text, openmetrics=True, worker=name) for name in ("a:1", 'b"2')]
    merged = strict(merge(parts, openmetrics=True), openmetrics=True)
    assert samples(merged["worker_requests"]) == {"a:1": 2, 'b"2': 2}
    assert {sample.labels["model"] for sample in merged["worker_requests"].samples} == {',worker="x",worker='}


def test_a_worker_label_is_added_where_there_is_none() -> None:
    """A sample without labels gets one."""
    text = "# HELP up h\n# TYPE up gauge\nup 1\n"
    merged = merge([parse(text, openmetrics=False, worker="w")], openmetrics=False)
    assert merged == '# HELP up h\n# TYPE up gauge\nup{worker="w"} 1\n'


@FORMATS
def test_series_that_are_there_already_are_dropped(openmetrics: bool) -> None:
    """One duplicate would make a scraper refuse everything; the first one stays."""
    texts = [worker_text("w", openmetrics=openmetrics, value=value) for value in (2, 5)]
    parts = [parse(text, openmetrics=openmetrics, worker="w") for text in texts]
    merged = strict(merge(parts, openmetrics=openmetrics), openmetrics=openmetrics)
    assert samples(merged["worker_requests"]) == {"w": 2}
    assert len(merged["worker_requests"].samples) == 1


def test_a_family_of_another_type_is_left_out() -> None:
    """A gauge and a counter of one name cannot be added up: the first declaration stands."""
    parts = [
        parse(f"# HELP x h\n# TYPE x {kind}\nx 1\n", openmetrics=False, worker=kind) for kind in ("gauge", "counter")
    ]
    assert merge(parts, openmetrics=False) == '# HELP x h\n# TYPE x gauge\nx{worker="gauge"} 1\n'


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "hello\n",
        "x 1\n",
        "# HELP x h\n# TYPE x gauge\ny 1\n",
        "# HELP x h\n# TYPE x gauge\nx{a=1} 1\n",
        '# HELP x h\n# TYPE x gauge\nx{a="1" b="2"} 1\n',
        '# HELP x h\n# TYPE x gauge\nx{a="\\q"} 1\n',
        "# HELP x h\n# TYPE x gauge\nx one\n",
        "# HELP x h\n# TYPE x gauge\nx 1",
        "# HELP x h\n# TYPE x gauge\n\nx 1\n",
        "# TYPE x gauge\n# TYPE x gauge\n",
        "# TYPE x histogram\nx 1\n",
        "# TYPE 1x gauge\n",
        "<html></html>\n",
    ],
)
def test_text_that_breaks_the_grammar_is_refused(text: str) -> None:
    """Every line is checked, so that nothing strange gets into the merged exposition."""
    with pytest.raises(ValueError, match=r"declared|metadata|cut short"):
        parse(text, openmetrics=False, worker="w")


@given(st.data())
def test_openmetrics_that_is_cut_anywhere_is_refused(data: st.DataObject) -> None:
    """A worker killed while it answers is not taken for one with fewer series."""
    text = '# HELP x h\n# TYPE x gauge\nx 1\nx{a="b"} 2\n# EOF\n'
    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError, match="cut short"):
        parse(text[:end], openmetrics=True)


@given(st.text())
def test_parse_only_ever_refuses_with_a_value_error(text: str) -> None:
    """Whatever a worker sends, the scrape goes on."""
    try:
        parse(text, openmetrics=False, worker="w")
    except ValueError:
        return


@contextmanager
def http_worker(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listener whose connections are answered by a function; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        answer(connection)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def reply(body: str, head: str = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n") -> bytes:
    """An HTTP reply."""
    return f"{head}\r\n{body}".encode()


def sends(*chunks: bytes) -> Callable[[socket.socket], None]:
    """Read the request, send these, close."""

    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        for chunk in chunks:
            connection.sendall(chunk)

    return answer


def waits(connection: socket.socket) -> None:
    """Read the request and say nothing until the peer goes away."""
    while connection.recv(4096):
        pass


def test_workers_that_do_not_answer_well_cost_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage, a hang, a flood, an error, a cut reply and a closed port: all are down, the good one is there."""
    monkeypatch.setattr(federation, "FETCH_SECONDS", 1.0)
    monkeypatch.setattr(federation, "MAX_EXPOSITION_BYTES", 100_000)
    good = worker_text("good", openmetrics=False)
    length = f"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(good) + 1}\r\n"
    behaviours = {
        "good": sends(reply(good)),
        "garbage": sends(reply("\x00\x01 nonsense")),
        "not utf-8": sends(reply("# HELP x h\n"), b"\xff\n"),
        "hangs": waits,
        "flood": sends(*[b"x" * 50_000] * 3),
        "error": sends(reply("", "HTTP/1.0 500 Oops\r\nContent-Type: text/plain\r\n")),
        "other type": sends(reply(good, "HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n")),
        "cut": sends(reply(good, length)),
        "silent": sends(),
    }
    with ExitStack() as stack:
        ports = {name: stack.enter_context(http_worker(answer)) for name, answer in behaviours.items()}
        with socket.create_server(("127.0.0.1", 0)) as unused:
            ports["closed"] = int(unused.getsockname()[1])
        fetched = fetch_all([Target(name, "127.0.0.1", port) for name, port in ports.items()], openmetrics=False)
    assert {name for name, families in fetched.items() if families is not None} == {"good"}
    assert set(fetched) == set(ports)


def test_no_targets_need_no_loop() -> None:
    """A gateway without workers' metrics has nothing to fetch."""
    assert fetch_all([], openmetrics=True) == {}
