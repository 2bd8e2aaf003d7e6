"""The routing table is a function of the workers' newest reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reactant_node.gateway.table import RoutingTable, WorkerReport, build, merge_index
from reactant_node.kserve.metadata import IndexEntry

STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "")

entries = st.builds(
    IndexEntry,
    name=st.sampled_from("abc"),
    version=st.sampled_from("12"),
    state=st.sampled_from(STATES),
    reason=st.sampled_from(["", "why"]),
)
reports = st.dictionaries(
    st.sampled_from(["worker0", "worker1", "worker10", "worker2"]),
    st.builds(WorkerReport, ready=st.booleans(), models=st.lists(entries, max_size=5).map(tuple)),
)


def row(name: str, state: str = "READY", reason: str = "", version: str = "1") -> IndexEntry:
    """One row of an index."""
    return IndexEntry(name, version, state, reason)


def test_the_empty_table_is_generation_zero_and_not_ready() -> None:
    """Before any worker answers nothing is known."""
    table = RoutingTable()
    assert table == build(0, {})
    assert not table.ready
    assert str(table) == "generation 0: 0 workers, 0 models"


def test_replicas_are_the_workers_that_have_the_model_ready() -> None:
    """A worker that only lists a model knows of it and is no replica; replicas are sorted."""
    table = build(
        7,
        {
            "b": WorkerReport(ready=True, models=(row("m"), row("n", "LOADING"))),
            "a": WorkerReport(ready=False, models=(row("m"), row("n", "UNAVAILABLE", "broken"))),
        },
    )
    assert dict(table.replicas) == {"m": ("a", "b")}
    assert dict(table.listed) == {"m": ("a", "b"), "n": ("a", "b")}
    assert table.workers == ("a", "b")
    assert table.ready_workers == {"b"}
    assert table.index == (row("m"), row("n", "LOADING"))
    assert str(table) == "generation 7: 2 workers, 1 models"


def test_a_model_is_ready_if_it_is_anywhere_else_the_reason_is_kept() -> None:
    """Merged by name and version: the best state wins, the first of equals."""
    assert merge_index([row("m", "UNAVAILABLE", "x"), row("m"), row("m", "LOADING")]) == (row("m"),)
    assert merge_index([row("m", "UNAVAILABLE", "x"), row("m", "UNAVAILABLE", "y")]) == (row("m", "UNAVAILABLE", "x"),)
    assert merge_index([row("m", "STRANGE"), row("m", "UNLOADING")]) == (row("m", "UNLOADING"),)


@given(reports)
def test_the_parts_of_a_table_agree(given_reports: dict[str, WorkerReport]) -> None:
    """Replicas are listed, listed workers answer, and a model is READY in the index iff it has a replica."""
    table = build(1, given_reports)
    assert set(table.workers) == set(given_reports)
    assert table.ready == any(report.ready for report in given_reports.values())
    for model, workers in table.replicas.items():
        assert set(workers) <= set(table.listed[model])
    for workers in (*table.replicas.values(), *table.listed.values()):
        assert list(workers) == sorted(set(workers))
    ready = {entry.name for entry in table.index if entry.state == "READY"}
    assert ready == set(table.replicas)
    assert {entry.name for entry in table.index} == set(table.listed)


@given(reports)
def test_a_table_does_not_depend_on_the_order_of_answers(given_reports: dict[str, WorkerReport]) -> None:
    """Workers answer in any order."""
    assert build(1, given_reports) == build(1, dict(reversed(given_reports.items())))
