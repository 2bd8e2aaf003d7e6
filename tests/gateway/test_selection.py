"""Which replica is next, and in which order the others follow."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.gateway.selection import LeastOutstanding, RoundRobin, selector

names = st.lists(st.sampled_from([f"w{number}" for number in range(6)]), min_size=1, unique=True).map(sorted)
ABC = ("a", "b", "c")


@pytest.mark.parametrize("mode", ["round_robin", "least_outstanding"])
@given(
    replicas=names,
    model=st.sampled_from(["m", ""]),
    loads=st.dictionaries(st.sampled_from(["w0", "w3"]), st.integers(0, 9)),
)
def test_every_order_is_a_rotation_of_all_replicas(
    mode: str, replicas: list[str], model: str, loads: dict[str, int]
) -> None:
    """Each replica is in it once, the rest of the rotation being the failover order."""
    order = selector(mode).order(model, replicas, loads)
    start = replicas.index(order[0])
    assert list(order) == replicas[start:] + replicas[:start]


@given(replicas=names, turns=st.integers(1, 30))
def test_round_robin_is_fair(replicas: list[str], turns: int) -> None:
    """No replica is more than one request ahead of another."""
    policy = RoundRobin()
    chosen = Counter(dict.fromkeys(replicas, 0))
    chosen.update(policy.order("m", replicas, {})[0] for _ in range(turns))
    assert max(chosen.values()) - min(chosen.values()) <= 1


def test_each_model_has_its_own_cursor() -> None:
    """A model's turn does not depend on other models' requests."""
    policy = RoundRobin()
    assert [policy.order("m", ABC, {})[0] for _ in range(2)] == ["a", "b"]
    assert policy.order("n", ABC, {})[0] == "a"
    assert policy.order("m", ABC, {})[0] == "c"
    assert repr(policy) == "<RoundRobin 2 models>"


def test_the_cursor_survives_workers_that_come_and_go() -> None:
    """The next turn is the next name after the last one, whatever the list is by then."""
    policy = RoundRobin()
    assert policy.order("m", ABC, {})[0] == "a"
    assert policy.order("m", ("a", "c"), {})[0] == "c"
    assert policy.order("m", ABC, {})[0] == "a"
    assert policy.order("m", ABC, {})[0] == "b"
    assert policy.order("m", ("a",), {})[0] == "a"
    assert policy.order("m", ABC, {}) == ("b", "c", "a")


def test_least_outstanding_takes_the_idlest_and_breaks_ties_by_name() -> None:
    """Loads are of all models together; a worker without calls counts zero."""
    policy = LeastOutstanding()
    assert policy.order("m", ABC, {"a": 2, "b": 1}) == ("c", "a", "b")
    assert policy.order("m", ABC, {"a": 2, "b": 1, "c": 1}) == ("b", "c", "a")
    assert policy.order("m", ABC, {}) == ABC


def test_an_unknown_mode_has_no_policy() -> None:
    """The loader checks; a slip there does not become another policy."""
    with pytest.raises(KeyError):
        selector("random")
