"""Calls are counted by how they ended."""

from __future__ import annotations

import asyncio

import pytest

from reactant_node.errors import BY_STATUS, NodeError
from reactant_node.telemetry.calls import CallRecorder
from tests.support.clock import ManualClock


def ended_with(error: BaseException | None, *, deadline_seconds: float | None = None) -> str:
    """The status counted for a call that takes a second and ends so."""
    clock = ManualClock()
    recorder = CallRecorder(clock)
    deadline_ns = None if deadline_seconds is None else clock.now_ns() + round(deadline_seconds * 1e9)

    def call() -> None:
        with recorder.measure("ModelInfer", deadline_ns) as measurement:
            measurement.model = "m"
            clock.advance(1)
            if error is not None:
                raise error

    if error is None:
        call()
    else:
        with pytest.raises(type(error)):
            call()
    statistics = recorder.statistics()
    ((rpc, model, status),) = statistics.requests
    assert (rpc, model) == ("ModelInfer", "m")
    assert statistics.latencies["ModelInfer", "m"].sum_seconds == 1.0
    return status


def test_a_call_that_returns_is_ok() -> None:
    """And takes as long as the clock says."""
    assert ended_with(None) == "OK"


@pytest.mark.parametrize("kind", BY_STATUS.values())
def test_an_error_of_ours_counts_under_its_status(kind: type[NodeError]) -> None:
    """In the upper-case names of gRPC."""
    assert ended_with(kind("why")) == kind.status.name


def test_anything_else_is_internal() -> None:
    """A defect is no success."""
    assert ended_with(RuntimeError("oops")) == "INTERNAL"


@pytest.mark.parametrize(
    ("deadline_seconds", "status"), [(None, "CANCELLED"), (2.0, "CANCELLED"), (1.0, "DEADLINE_EXCEEDED")]
)
def test_a_cancelled_call_was_late_or_given_up(deadline_seconds: float | None, status: str) -> None:
    """The transport cancels for both; the clock tells them apart."""
    assert ended_with(asyncio.CancelledError(), deadline_seconds=deadline_seconds) == status


def test_shed_calls_are_counted_beside() -> None:
    """Refusals at a cap have a number of their own."""
    recorder = CallRecorder(ManualClock())
    recorder.record_shed()
    assert recorder.statistics().shed == 1
    assert repr(recorder) == "<CallRecorder 0 calls, 1 shed>"
