"""Whose turn it is, by handing each discipline its candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.config.schema import SchedulerConfig
from reactant_node.scheduling.disciplines import Candidate, discipline, fair_score

CONFIG = SchedulerConfig()
MS = 1_000_000.0


def candidate(
    model: str,
    *,
    front_ns: int = 0,
    deadline_ns: int | None = None,
    cost_ms: float = 1.0,
    requests: int = 1,
    share: float = 0.5,
    used: float = 0.0,
) -> Candidate:
    """A model with something to run."""
    return Candidate(model, front_ns, deadline_ns, requests, cost_ms * MS, share, used)


def order(name: str, *candidates: Candidate) -> str:
    """Models as they would go, first to last."""
    ranked = sorted(candidates, key=discipline(SchedulerConfig(discipline=name)))
    return "".join(it.model for it in ranked)


def test_fifo_goes_by_the_oldest_front_request_then_by_name() -> None:
    """Shares, costs and deadlines do not count."""
    first = candidate("c", front_ns=1, used=1.0, cost_ms=99)
    assert order("fifo", candidate("b", front_ns=2, deadline_ns=1), first, candidate("a", front_ns=2)) == "cab"


def test_edf_goes_by_the_earliest_deadline_then_as_fifo() -> None:
    """None comes last; equal deadlines leave it to the oldest front request, then to the name."""
    candidates = (
        candidate("e"),
        candidate("a", front_ns=2, deadline_ns=7),
        candidate("b", front_ns=1, deadline_ns=7),
        candidate("d", front_ns=1, deadline_ns=7),
        candidate("c", front_ns=9, deadline_ns=6),
    )
    assert order("edf", *candidates) == "cbdae"


def test_edf_tells_deadlines_apart_to_the_nanosecond_at_any_uptime() -> None:
    """Beyond 2**53 ns a float could not."""
    late = 2**60
    assert order("edf", candidate("a", deadline_ns=late + 1), candidate("b", deadline_ns=late)) == "ba"


def test_fair_pays_debts_by_size_and_price() -> None:
    """A larger debt first at equal cost, the cheaper run first at equal debt."""
    assert order("fair", candidate("a", used=0.4), candidate("b", used=0.3)) == "ba"
    assert order("fair", candidate("a", used=0.4, cost_ms=9), candidate("b", used=0.4)) == "ba"


def test_fair_ties_go_to_the_oldest_front_request_then_to_the_name() -> None:
    """Equal scores."""
    assert order("fair", candidate("a", front_ns=2), candidate("c", front_ns=1), candidate("b", front_ns=1)) == "bca"


def test_a_debt_counts_up_to_the_cap() -> None:
    """Beyond `recency_penalty_cap` only price and age decide."""
    capped, far_beyond = candidate("a", share=0.25, front_ns=2), candidate("b", share=0.9, front_ns=1)
    assert fair_score(capped, CONFIG) == fair_score(far_beyond, CONFIG) == 0.25 / MS


def test_joining_requests_is_priced_with_the_discount() -> None:
    """A batch of several is `coalescing_discount` cheaper; a single request of many rows is not."""
    single, several = candidate("a"), candidate("a", requests=2)
    assert fair_score(several, CONFIG) == pytest.approx(fair_score(single, CONFIG) / 0.9)


@pytest.mark.parametrize("cost_ms", [0.01, 1.0, 1_000.0])
def test_beyond_the_share_cost_does_not_count(cost_ms: float) -> None:
    """Neither the dearest nor the cheapest gains from its price where nobody is owed anything."""
    a = candidate("a", share=0.1, used=0.3, cost_ms=cost_ms)
    assert order("fair", candidate("b", share=0.1, used=0.31), a) == "ab"
    assert order("fair", candidate("b", share=0.1, used=0.29), a) == "ba"


def test_beyond_the_share_the_rest_goes_by_weight() -> None:
    """The model that is least ahead in proportion goes, however far both are beyond cap and share."""
    light, heavy = candidate("a", share=0.01, used=0.25), candidate("b", share=0.03, used=0.74)
    assert order("fair", light, heavy) == "ba"
    assert order("fair", light, replace(heavy, used=0.76)) == "ab"


@given(
    st.lists(
        st.builds(
            candidate,
            st.just("m"),
            cost_ms=st.floats(0, 1e6),
            requests=st.integers(1, 64),
            share=st.floats(1e-6, 1.0),
            used=st.floats(0, 1.0),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_model_that_is_owed_something_goes_before_every_model_that_is_not(candidates: list[Candidate]) -> None:
    """Whatever cost, discount and cap: the sign of share minus used decides first."""
    ranked = sorted(candidates, key=discipline(CONFIG))
    owed = [it.used < it.share for it in ranked]
    assert owed == sorted(owed, reverse=True)
