"""What is learned of runs: cost per batch size, device time per model."""

from __future__ import annotations

import pytest

from reactant_node.scheduling.costs import SIZES_KEPT, UNMEASURED_COST_NS, CostTable, UsageAverage


def table(**measured: int) -> CostTable:
    """One run per size, `b4=100`."""
    costs = CostTable(alpha=0.2)
    for size, compute_ns in measured.items():
        costs.record(int(size[1:]), compute_ns)
    return costs


def test_the_first_measurement_is_taken_as_it_is_and_later_ones_by_alpha() -> None:
    """A moving average, for each size apart."""
    costs = table(b1=100, b2=1_000)
    costs.record(1, 200)
    assert costs.snapshot() == {1: pytest.approx(120.0), 2: 1_000.0}


@pytest.mark.parametrize(
    ("size", "expected_ns"), [(0, 100.0), (1, 100.0), (3, 200.0), (5, 300.0), (7, 500.0), (9, 700.0), (64, 700.0)]
)
def test_an_unmeasured_size_lies_between_its_measured_neighbours(size: int, expected_ns: float) -> None:
    """On the line between them; beyond the ends, what the nearest costs."""
    assert table(b9=700, b1=100, b5=300).estimate_ns(size) == pytest.approx(expected_ns)


def test_a_model_without_any_measurement_costs_ten_milliseconds() -> None:
    """The stand-in, also after everything was forgotten."""
    costs = table(b1=5)
    costs.clear()
    assert (costs.estimate_ns(1), costs.estimate_ns(8), costs.snapshot()) == (UNMEASURED_COST_NS, 10_000_000.0, {})


def test_the_table_keeps_the_sizes_measured_last() -> None:
    """Clients choose sizes, and cannot make it grow for ever."""
    costs = CostTable(alpha=0.2)
    costs.record(7, 70)
    for size in range(100, 100 + SIZES_KEPT):
        costs.record(7, 70)
        costs.record(size, size)
    kept = costs.snapshot()
    assert len(kept) == SIZES_KEPT
    assert 7 in kept
    assert 100 not in kept
    assert costs.estimate_ns(101) == 101.0


def test_usage_halves_with_every_half_life() -> None:
    """It fades before it is read and before it is added to; a clock that steps back changes nothing."""
    usage = UsageAverage(halflife_ns=100)
    usage.add(80, now_ns=1_000)
    assert [usage.at_ns(now) for now in (1_000, 1_100, 1_300)] == [80.0, 40.0, 10.0]
    assert usage.at_ns(900) == 80.0
    usage.add(10, now_ns=1_100)
    assert usage.at_ns(1_200) == 25.0


def test_usage_of_long_ago_is_nothing() -> None:
    """Underflow ends at zero, not in an error."""
    usage = UsageAverage(halflife_ns=1)
    usage.add(80, now_ns=0)
    assert usage.at_ns(10**15) == 0.0
