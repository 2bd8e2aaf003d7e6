"""What one execution serves, by handing the planner a queue's leading run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.scheduling.batching import BatchLimits, BatchShape, Window, hold_until_ns, plan_batch


def joined(
    max_rows: int | None = None, compiled: tuple[int, ...] = (), preferred: tuple[int, ...] = (), delay_ns: int = 0
) -> BatchLimits:
    """A model that coalesces."""
    return BatchLimits(
        coalescable=True,
        max_rows=max_rows,
        compiled_sizes=compiled,
        preferred_sizes=preferred,
        max_queue_delay_ns=delay_ns,
    )


def planned(rows: tuple[int, ...], limits: BatchLimits, *, closed: bool = False) -> tuple[int, int]:
    """Requests taken and batch size."""
    shape = plan_batch(Window(rows, closed), limits)
    return shape.requests, shape.batch_size


@pytest.mark.parametrize(
    ("rows", "limits", "expected"),
    [
        ((1, 1, 1), joined(), (3, 3)),
        ((1, 1, 1), joined(max_rows=2), (2, 2)),
        ((2, 2, 2), joined(max_rows=5), (2, 4)),
        ((3, 3), joined(max_rows=5), (1, 3)),
        ((9, 1), joined(max_rows=8), (1, 9)),
        ((0, 0, 2), joined(max_rows=2), (3, 2)),
        ((0,), joined(), (1, 0)),
    ],
)
def test_without_compiled_sizes_the_batch_is_the_rows_taken(
    rows: tuple[int, ...], limits: BatchLimits, expected: tuple[int, int]
) -> None:
    """Whole requests from the front while they fit the row limit; the front one always, alone if it is too large."""
    assert planned(rows, limits) == expected


@pytest.mark.parametrize(
    ("rows", "max_rows", "sizes", "expected"),
    [
        ((1,), None, (1, 4, 8), (1, 1)),
        ((1, 1, 1), None, (1, 4, 8), (1, 1)),
        ((1,) * 5, None, (1, 4, 8), (4, 4)),
        ((1,) * 20, None, (8, 1, 4), (8, 8)),
        ((1, 1), None, (4, 8), (2, 4)),
        ((0,), None, (4, 8), (1, 4)),
        ((3, 3), None, (1, 4), (1, 4)),
        ((3,), None, (1, 2, 4), (1, 4)),
        ((1,) * 20, 6, (1, 4, 8), (4, 4)),
        ((1,) * 20, 3, (4, 8), (3, 4)),
        ((2, 1, 3), 4, (1, 2, 3, 4), (2, 4)),
        ((5, 1), 4, (1, 4, 8), (1, 8)),
        ((9, 1), None, (1, 4, 8), (1, 9)),
    ],
)
def test_compiled_sizes_are_filled_or_else_padded(
    rows: tuple[int, ...], max_rows: int | None, sizes: tuple[int, ...], expected: tuple[int, int]
) -> None:
    """The largest size the waiting rows fill, the smallest where they fill none, room for the front in any case."""
    assert planned(rows, joined(max_rows, sizes)) == expected


def test_a_model_that_does_not_coalesce_runs_alone_and_unpadded() -> None:
    """Nothing has shown that its rows do not see each other, nor the padding."""
    assert plan_batch(Window((3,), closed=True), BatchLimits(compiled_sizes=(8,))) == BatchShape(1, 3, complete=True)


@pytest.mark.parametrize(
    ("rows", "max_rows", "preferred", "expected"),
    [
        ((1,) * 7, 16, (4, 8), (4, 4)),
        ((1,) * 9, 16, (4, 8), (8, 8)),
        ((1,) * 3, 16, (4, 8), (3, 3)),
        ((3, 3), 16, (4,), (2, 6)),
        ((3, 1, 3), 16, (4,), (2, 4)),
    ],
)
def test_a_preferred_size_that_can_be_made_exactly_is_taken(
    rows: tuple[int, ...], max_rows: int, preferred: tuple[int, ...], expected: tuple[int, int]
) -> None:
    """The largest one that leading requests add up to; where none is, all that fit."""
    assert planned(rows, joined(max_rows, preferred=preferred)) == expected


@pytest.mark.parametrize(
    ("rows", "closed", "preferred", "complete"),
    [((1, 1), False, (), False), ((1, 1), True, (), True), ((1, 1), False, (2,), True), ((1,), False, (2,), False)],
)
def test_a_batch_is_complete_when_nothing_is_gained_by_waiting(
    rows: tuple[int, ...], closed: bool, preferred: tuple[int, ...], complete: bool
) -> None:
    """It has a preferred size, or nothing that arrives could join it."""
    assert plan_batch(Window(rows, closed), joined(preferred=preferred)).complete is complete


@pytest.mark.parametrize(("deadline_ns", "until_ns"), [(None, 150), (1_000, 150), (160, 140), (90, 70)])
def test_waiting_for_company_ends_with_the_delay_or_before_a_deadline_is_lost(
    deadline_ns: int | None, until_ns: int
) -> None:
    """The oldest request waits as long as the model allows, and two runs short of the earliest deadline."""
    assert hold_until_ns(joined(delay_ns=50), 100, deadline_ns, 10.0) == until_ns


@pytest.mark.parametrize(
    ("limits", "reported"),
    [(joined(), 0), (joined(8), 8), (joined(8, (1, 4)), 4), (joined(3, (1, 4)), 3), (BatchLimits(max_rows=8), 0)],
)
def test_the_largest_batch_is_reported_where_something_bounds_it(limits: BatchLimits, reported: int) -> None:
    """The largest compiled size, limited by the row limit; 0 for none."""
    assert limits.effective_max_batch_size == reported


SIZES = st.lists(st.integers(1, 12), max_size=3).map(tuple)


@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
    max_rows=st.none() | st.integers(1, 12),
    compiled=SIZES,
    preferred=SIZES,
    coalescable=st.booleans(),
)
def test_every_batch_holds_its_rows_and_makes_progress(
    rows: tuple[int, ...],
    max_rows: int | None,
    compiled: tuple[int, ...],
    preferred: tuple[int, ...],
    coalescable: bool,
) -> None:
    """At least the front goes, padding is never negative, and several requests never exceed the model's limit."""
    window = Window(rows if coalescable else rows[:1], closed=True)
    shape = plan_batch(window, BatchLimits(coalescable, max_rows, compiled, preferred))
    taken = sum(rows[: shape.requests])
    assert 1 <= shape.requests <= len(window.rows)
    assert taken <= shape.batch_size
    if shape.requests > 1 and sum(rows[: shape.requests]) > rows[0]:
        assert taken <= (max_rows or taken)
    if not (coalescable and compiled):
        assert shape.batch_size == taken
    else:
        assert shape.batch_size in compiled or shape.batch_size == rows[0] > max(compiled)
