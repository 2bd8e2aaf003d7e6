"""The node's way down: what is due when, by one deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import ExitCode
from reactant_node.supervisor.shutdown import Phase, Shutdown


class Way:
    """A shutdown of ten seconds, begun at 100 s."""

    def __init__(self, exit_code: ExitCode = ExitCode.OK) -> None:
        self.shutdown = Shutdown(10)
        assert self.shutdown.begin(exit_code, 100 * NS_PER_SECOND)

    def at(self, seconds: float, *, drained: bool = False, alive: bool = True) -> list[Phase]:
        """The phases that begin so long after the start."""
        phases = []
        while phase := self.shutdown.next(_at(seconds), drained=drained, alive=alive):
            phases.append(phase)
        return phases


def _at(seconds: float) -> int:
    return round((100 + seconds) * NS_PER_SECOND)


def test_nothing_is_due_before_it_begins() -> None:
    """A node that runs goes on running."""
    shutdown = Shutdown(10)
    assert shutdown.next(10**18, drained=True, alive=False) is None
    assert repr(shutdown) == "<Shutdown RUNNING OK>"


def test_the_first_exit_code_counts() -> None:
    """Later reasons to stop change nothing."""
    way = Way(ExitCode.CONFIG)
    assert not way.shutdown.begin(ExitCode.FAILURE, _at(1))
    assert way.shutdown.exit_code is ExitCode.CONFIG


def test_a_node_with_nothing_to_wait_for_is_down_at_once() -> None:
    """Every phase is entered all the same, in order."""
    assert Way().at(0, drained=True, alive=False) == [Phase.STOPPING, Phase.KILLING, Phase.STOPPED]


def test_each_phase_ends_when_what_it_waits_for_is_done() -> None:
    """The drain with the last call, stopping with the last child."""
    way = Way()
    assert way.at(1) == []
    assert way.at(2, drained=True) == [Phase.STOPPING]
    assert way.at(3, drained=True) == []
    assert way.at(4, drained=True, alive=False) == [Phase.KILLING, Phase.STOPPED]


def test_each_phase_ends_when_its_share_is_over() -> None:
    """70 % for the drain, 90 % until SIGKILL, and at the deadline the node goes, whatever is left."""
    way = Way()
    assert way.at(6.999) == []
    assert way.at(7) == [Phase.STOPPING]
    assert way.at(8.999) == []
    assert way.at(9) == [Phase.KILLING]
    assert way.at(9.999) == []
    assert way.at(10) == [Phase.STOPPED]


def test_a_second_signal_ends_the_drain_and_leaves_a_second_to_stop() -> None:
    """And another one for what then is left."""
    way = Way()
    assert way.shutdown.hurry(_at(2))
    assert way.at(2) == [Phase.STOPPING]
    assert way.at(2.999) == []
    assert way.at(3) == [Phase.KILLING]
    assert way.at(4) == [Phase.STOPPED]


def test_a_late_second_signal_gains_no_time() -> None:
    """The deadlines stay where they are earlier anyway."""
    way = Way()
    assert way.shutdown.hurry(_at(8.5))
    assert way.at(9) == [Phase.STOPPING, Phase.KILLING]
    assert way.at(10) == [Phase.STOPPED]


def test_a_process_has_a_second_to_die() -> None:
    """However short the timeout: that SIGKILL was not enough is said of no process that was only slow."""
    shutdown = Shutdown(0)
    shutdown.begin(ExitCode.OK, _at(0))
    assert [shutdown.next(_at(0), drained=False, alive=True) for _ in range(3)] == [Phase.STOPPING, Phase.KILLING, None]
    assert shutdown.next(_at(0.999), drained=False, alive=True) is None
    assert shutdown.next(_at(1), drained=False, alive=True) is Phase.STOPPED


def test_a_signal_that_comes_double_is_one() -> None:
    """Whoever signals both the process and its group means it once."""
    way = Way()
    assert not way.shutdown.hurry(_at(0.1))
    assert way.at(0.1) == []


@pytest.mark.parametrize(
    ("before", "after"), [(ExitCode.OK, ExitCode.FAILURE), (ExitCode.CONFIG, ExitCode.CONFIG)], ids=["clean", "not"]
)
def test_an_end_that_was_not_clean_shows_in_the_exit_code(before: ExitCode, after: ExitCode) -> None:
    """Unless the code says worse already."""
    way = Way(before)
    way.shutdown.fail()
    assert way.shutdown.exit_code is after


def test_what_remains_is_never_negative() -> None:
    """Before the deadline it is the time until then."""
    way = Way()
    assert way.shutdown.remaining_seconds(_at(4)) == pytest.approx(6)
    assert way.shutdown.remaining_seconds(_at(40)) == 0


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.booleans(), st.booleans()), max_size=20))
def test_phases_only_move_on_and_the_deadline_is_kept(history: list[tuple[float, bool, bool, bool]]) -> None:
    """Whatever is drained, alive or asked for again: each phase once, in order, and no more at ten seconds."""
    way, seconds, seen = Way(), 0.0, [Phase.DRAINING]
    for step, drained, alive, again in history:
        seconds += step
        if again:
            way.shutdown.hurry(_at(seconds))
        seen += way.at(seconds, drained=drained, alive=alive)
    seen += way.at(max(10, seconds))
    assert seen == [Phase.DRAINING, Phase.STOPPING, Phase.KILLING, Phase.STOPPED]
