"""Joining requests into one execution, and giving each caller its own rows back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reactant_node.clock import NS_PER_SECOND, MonotonicClock
from reactant_node.errors import Internal
from reactant_node.models.signature import ModelSignature
from reactant_node.tensors import NamedTensor
from reactant_node.worker.batch import Job, run_together
from reactant_node.worker.statistics import ExecutionTimes
from tests.support.clock import ManualClock


class RowSession:
    """Outputs `same` = x and `sum` = the sum of each row; keeps what it was given."""

    signature = ModelSignature((), ())
    provider = "CPUExecutionProvider"

    def __init__(self) -> None:
        self.seen: list[NDArray[Any]] = []

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Row by row."""
        data = inputs[0].data
        self.seen.append(data)
        values = {"same": data} if data.dtype == object else {"same": data, "sum": data.sum(axis=1, keepdims=True)}
        return [NamedTensor(name, inputs[0].datatype, values[name]) for name in outputs]

    def close(self) -> None:
        """Nothing to release."""


def job(session: RowSession, data: NDArray[Any], *outputs: str, axis: int | None = 0) -> Job:
    """A request for these rows."""
    datatype = "BYTES" if data.dtype == object else "FP32"
    return Job("m", session, (NamedTensor("x", datatype, data),), outputs or ("same",), axis, len(data))


def together(jobs: Sequence[Job], batch_size: int) -> list[list[NamedTensor]]:
    """The answers of one execution."""
    return run_together(jobs, batch_size, MonotonicClock())[0]


def test_a_lone_request_passes_through_without_a_copy() -> None:
    """Its array is the very one that the session gets."""
    session, data = RowSession(), np.ones((3, 2), np.float32)

    answers = together([job(session, data)], 3)

    assert session.seen[0] is data
    assert answers[0][0].data is data


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 3))
def test_each_caller_gets_its_own_rows_and_nobody_the_padding(rows: list[int], padding: int) -> None:
    """Whatever the rows, zero included, and whatever is filled up."""
    session = RowSession()
    blocks = [np.full((count, 2), number + 1, np.float32) for number, count in enumerate(rows)]

    answers = together([job(session, block, "sum", "same") for block in blocks], sum(rows) + padding)

    assert len(session.seen) == 1
    assert len(session.seen[0]) == sum(rows) + padding
    for block, (total, same) in zip(blocks, answers, strict=True):
        np.testing.assert_array_equal(same.data, block)
        np.testing.assert_array_equal(total.data, block.sum(axis=1, keepdims=True))


def test_each_caller_gets_the_outputs_it_asked_for_in_its_order() -> None:
    """One run gives the union; an output that nobody wants is not computed."""
    session, row = RowSession(), np.ones((1, 2), np.float32)

    answers = together([job(session, row, "sum"), job(session, row, "same", "sum"), job(session, row, "same")], 3)

    assert [[output.name for output in answer] for answer in answers] == [["sum"], ["same", "sum"], ["same"]]


def test_texts_are_padded_with_empty_ones() -> None:
    """A BYTES input has no zero."""
    session = RowSession()
    words = np.array([["a"], ["b"]], dtype=object)

    answers = together([job(session, words)], 3)

    assert session.seen[0].tolist() == [["a"], ["b"], [""]]
    assert answers[0][0].data.tolist() == [["a"], ["b"]]


def test_the_order_of_inputs_in_a_request_does_not_matter() -> None:
    """Inputs are joined by name; requests that differ in their order alone are one variant."""
    session = RowSession()
    x, y = (NamedTensor(name, "FP32", np.full((1, 1), value, np.float32)) for name, value in (("x", 1), ("y", 9)))
    straight = Job("m", session, (x, y), ("same",), 0, 1)
    crossed = replace(straight, inputs=(y, x))

    assert straight.variant == crossed.variant
    answers = together([straight, crossed], 2)
    assert [answer[0].data.tolist() for answer in answers] == [[[1]], [[1]]]


@pytest.mark.parametrize("other", [np.ones((1, 3), np.float32), np.ones((1, 2, 1), np.float32)])
def test_requests_of_other_extents_are_another_variant(other: NDArray[Any]) -> None:
    """Only the batch axis may differ within an execution."""
    session = RowSession()
    assert job(session, np.ones((1, 2), np.float32)).variant != job(session, other).variant
    assert job(session, np.ones((1, 2), np.float32)).variant == job(session, np.ones((9, 2), np.float32)).variant


def test_another_session_is_another_variant() -> None:
    """Requests for an old and a new version of a model never share an execution."""
    row = np.ones((1, 2), np.float32)
    first, second = RowSession(), RowSession()
    assert job(first, row).variant != job(second, row).variant


def test_an_output_that_does_not_follow_the_batch_axis_is_given_to_nobody() -> None:
    """The run fails as a whole, so that the dispatcher runs the requests one by one."""

    class Reducing(RowSession):
        """Its output has one row whatever it is given."""

        def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
            """The mean of all rows."""
            return [NamedTensor(name, "FP32", inputs[0].data.mean(axis=0, keepdims=True)) for name in outputs]

    session, row = Reducing(), np.ones((1, 2), np.float32)
    with pytest.raises(Internal, match=r"shape \[1, 2\] for 2 joined rows"):
        together([job(session, row), job(session, row)], 2)


@pytest.mark.parametrize("requests", [1, 3])
def test_the_time_of_an_execution_is_told_by_its_parts(requests: int) -> None:
    """Joining ends where the run begins, and splitting begins where it ends."""

    class SteppingClock(ManualClock):
        """One second passes before each reading."""

        def now_ns(self) -> int:
            """The next instant."""
            self.advance(1)
            return super().now_ns()

    clock = SteppingClock()

    class SlowSession(RowSession):
        """A run takes ten seconds."""

        def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
            """Let them pass."""
            clock.advance(10)
            return super().run(inputs, outputs)

    jobs = [job(SlowSession(), np.ones((1, 2), np.float32)) for _ in range(requests)]
    times = run_together(jobs, requests, clock)[1]
    assert times == ExecutionTimes(NS_PER_SECOND, 11 * NS_PER_SECOND, NS_PER_SECOND)
