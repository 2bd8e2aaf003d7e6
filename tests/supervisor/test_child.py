"""One child's state machine: every event in every state, and what a life of them leads to."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import ExitCode
from reactant_node.reports import Failed, Heartbeat, Loading, Ready, Report
from reactant_node.supervisor.child import (
    ALIVE,
    BOOT_ATTEMPTS,
    LOADING_SILENCE_SECONDS,
    ChildMachine,
    ChildPolicy,
    Drain,
    Event,
    Exited,
    GiveUp,
    Kill,
    Reported,
    RestartLater,
    Spawn,
    Start,
    State,
    Step,
    Stop,
    Terminate,
    Tick,
    backoff_seconds,
)

READY = Reported(Ready(1, 2))
SIGKILLED = Exited(-9)
PATIENT = ChildPolicy(heartbeat_timeout_seconds=0)
TIME_OVER = Kill("the time for stopping is over")


class Life:
    """A machine and its time, in seconds."""

    def __init__(self, policy: ChildPolicy = PATIENT) -> None:
        self.machine = ChildMachine(policy)
        self.now = 0.0

    def do(self, *events: Event) -> list[Step]:
        """Handle events now; the steps of the last."""
        steps: list[Step] = []
        for event in events:
            steps = self.machine.handle(event, round(self.now * NS_PER_SECOND))
        return steps

    def after(self, seconds: float, event: Event) -> list[Step]:
        """Let time pass in ticks of half a second, then handle an event; the steps of all."""
        steps: list[Step] = []
        end = self.now + seconds
        while self.now + 0.5 < end:
            self.now += 0.5
            steps += self.do(Tick())
        self.now = end
        return steps + self.do(event)

    def run(self, seconds: float, exited: Event = SIGKILLED) -> list[Step]:
        """A child in back-off is started again, is ready, and ends so much later."""
        while not self.do(Tick()):
            self.now += 0.5
        return [*self.do(READY), *self.after(seconds, exited)]


WAYS: dict[State, tuple[Event, ...]] = {
    State.STOPPED: (),
    State.STARTING: (Start(),),
    State.RUNNING: (Start(), READY),
    State.BACKOFF: (Start(), SIGKILLED),
    State.DRAINING: (Start(), READY, Drain()),
    State.STOPPING: (Start(), READY, Stop()),
    State.EXITED: (Stop(),),
    State.FATAL: (Start(), Exited(ExitCode.CONFIG)),
}

EVENTS: dict[str, Event] = {
    "start": Start(),
    "ready": READY,
    "loading": Reported(Loading(1, 2)),
    "beat": Reported(Heartbeat()),
    "failed": Reported(Failed("why")),
    "killed": SIGKILLED,
    "ended": Exited(0),
    "config": Exited(ExitCode.CONFIG),
    "tick": Tick(),
    "drain": Drain(),
    "stop": Stop(),
    "kill": Stop(kill=True),
}

CONFIG = GiveUp("its configuration is wrong, and would be after a restart", ExitCode.CONFIG)
ENDS: dict[str, tuple[State, list[Step]]] = {
    "killed": (State.BACKOFF, [RestartLater(1)]),
    "ended": (State.BACKOFF, [RestartLater(1)]),
    "config": (State.FATAL, [CONFIG]),
}
STOPS: dict[str, tuple[State, list[Step]]] = {
    "stop": (State.STOPPING, [Terminate()]),
    "kill": (State.STOPPING, [TIME_OVER]),
}


def staying(state: State, *names: str) -> dict[str, tuple[State, list[Step]]]:
    """These events change nothing."""
    return {name: (state, []) for name in names}


EXPECTED: dict[State, dict[str, tuple[State, list[Step]]]] = {
    State.STOPPED: {
        "start": (State.STARTING, [Spawn()]),
        **staying(State.STOPPED, "tick"),
        **staying(State.EXITED, "drain", "stop", "kill"),
    },
    State.STARTING: {
        **staying(State.STARTING, "loading", "beat", "failed", "tick"),
        "ready": (State.RUNNING, []),
        "drain": (State.STOPPING, [Terminate()]),
        **ENDS,
        **STOPS,
    },
    State.RUNNING: {
        **staying(State.RUNNING, "ready", "loading", "beat", "failed", "tick"),
        "drain": (State.DRAINING, []),
        **ENDS,
        **STOPS,
    },
    State.BACKOFF: {
        **staying(State.BACKOFF, "tick"),
        **staying(State.EXITED, "drain", "stop", "kill"),
    },
    State.DRAINING: {
        **staying(State.DRAINING, "ready", "loading", "beat", "failed", "tick", "drain"),
        **staying(State.EXITED, "killed", "ended", "config"),
        **STOPS,
    },
    State.STOPPING: {
        **staying(State.STOPPING, "ready", "loading", "beat", "failed", "tick", "drain", "stop"),
        **staying(State.EXITED, "killed", "ended", "config"),
        "kill": (State.STOPPING, [TIME_OVER]),
    },
    State.EXITED: staying(State.EXITED, "tick", "drain", "stop", "kill"),
    State.FATAL: {
        **staying(State.FATAL, "tick"),
        **staying(State.EXITED, "drain", "stop", "kill"),
    },
}


@pytest.mark.parametrize(("state", "name"), list(product(State, EVENTS)))
def test_every_event_in_every_state(state: State, name: str) -> None:
    """The next state and the steps are the table's, and an event without meaning names itself and the state."""
    life = Life()
    life.do(*WAYS[state])
    assert life.machine.state is state
    expected = EXPECTED[state].get(name)
    if expected is None:
        with pytest.raises(ValueError, match=rf"^{type(EVENTS[name]).__name__} has no meaning .* {state}$"):
            life.do(EVENTS[name])
        assert life.machine.state is state
    else:
        assert (life.do(EVENTS[name]), life.machine.state) == (expected[1], expected[0])


def test_restarts_come_after_1_2_4_up_to_30_seconds() -> None:
    """Each failure in a row doubles the wait, to half a minute."""
    life = Life()
    life.do(Start())
    waits = []
    for _ in range(8):
        (step,) = life.do(SIGKILLED)
        assert isinstance(step, RestartLater)
        waits.append(step.seconds)
        assert life.after(step.seconds - 0.001, Tick()) == []
        assert life.after(0.001, Tick()) == [Spawn()]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert life.machine.restarts == 8
    assert repr(life.machine) == "<ChildMachine STARTING, 8 restarts, 8 failures in a row>"


def test_the_wait_is_bounded_however_many_failures() -> None:
    """A night of failures overflows nothing."""
    assert backoff_seconds(1) == 1
    assert backoff_seconds(10**9) == 30


@pytest.mark.parametrize(("seconds", "wait"), [(59.9, 4), (60.0, 1)])
def test_a_stable_run_wipes_the_count(seconds: float, wait: float) -> None:
    """A minute counts as stable; less does not."""
    life = Life()
    life.do(Start(), SIGKILLED)
    assert life.run(1)[-1] == RestartLater(2)
    assert life.run(seconds)[-1] == RestartLater(wait)


def test_a_budget_of_restarts_ends_the_node() -> None:
    """With a budget of 2 the third failure in a row is one too many; the message names the setting."""
    life = Life(ChildPolicy(max_restarts=2, heartbeat_timeout_seconds=0))
    life.do(Start())
    assert life.do(SIGKILLED) == [RestartLater(1)]
    assert life.run(1)[-1] == RestartLater(2)
    (step,) = life.run(1)[-1:]
    assert step == GiveUp("3 failures in a row; REACTANT_SUPERVISOR_MAX_RESTARTS allows 2", ExitCode.FAILURE)
    assert life.machine.state is State.FATAL


def test_a_runtime_that_cannot_be_loaded_is_tried_three_times() -> None:
    """Then this child is given up, and whether the node goes on is not its affair."""
    life = Life()
    life.do(Start())
    for _ in range(BOOT_ATTEMPTS - 1):
        assert isinstance(life.do(Exited(ExitCode.BOOT))[0], RestartLater)
        life.after(30, Tick())
    assert life.do(Exited(ExitCode.BOOT)) == [GiveUp("it could not load its runtime 3 times in a row", None)]


@pytest.mark.parametrize("between", [(READY,), (SIGKILLED,)], ids=["ready", "another-death"])
def test_boot_failures_count_in_a_row_only(between: tuple[Event, ...]) -> None:
    """Once it has been ready, or has died of something else, the attempts start over."""
    life = Life()
    life.do(Start())
    for _ in range(BOOT_ATTEMPTS - 1):
        life.do(Exited(ExitCode.BOOT))
        life.after(30, Tick())
    life.do(*between)
    life.after(30, Tick())
    assert isinstance(life.do(Exited(ExitCode.BOOT))[0], RestartLater)


def test_silence_is_a_hang() -> None:
    """A child that serves and does not beat is killed, once, and its death is then like any other."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=10))
    life.do(Start(), READY)
    assert life.after(10, Tick()) == []
    assert life.after(0.5, Tick()) == [Kill("no heartbeat for 10 s")]
    assert life.after(60, Tick()) == []
    assert life.do(SIGKILLED) == [RestartLater(1)]


def test_beats_keep_it_alive() -> None:
    """Each starts the wait anew."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=10))
    life.do(Start(), READY)
    assert [life.after(9, Reported(Heartbeat())) for _ in range(10)] == [[]] * 10


@pytest.mark.parametrize(
    "events",
    [
        (Start(),),
        (Start(), Reported(Heartbeat())),
        (Start(), Reported(Loading(1, 9))),
        (Start(), READY, Reported(Loading(1, 9))),
        (Start(), READY, Reported(Heartbeat(loading=True))),
    ],
    ids=["before-the-first-word", "before-ready", "between-models", "loading-later", "loading-says-the-beat"],
)
def test_a_child_that_loads_may_be_silent_for_long(events: tuple[Event, ...]) -> None:
    """A load can hold the interpreter; only a silence of minutes is a hang then."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=10))
    life.do(*events)
    assert life.after(LOADING_SILENCE_SECONDS, Tick()) == []
    assert life.after(0.5, Tick()) == [Kill("no heartbeat for 300 s")]


def test_without_a_timeout_silence_means_nothing() -> None:
    """0 turns it off, loading or not."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=0))
    life.do(Start())
    assert life.after(1000, READY) == []
    assert life.after(1000, Tick()) == []


def test_a_silence_in_which_nobody_listened_is_not_blamed_on_the_child() -> None:
    """After a pause of the whole container a child has its full time to beat again."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=10))
    life.do(Start(), READY)
    life.now += 3600
    assert life.do(Tick()) == []
    assert life.after(10, Tick()) == []
    assert life.after(0.5, Tick()) == [Kill("no heartbeat for 10 s")]


def test_a_run_that_does_not_end_is_a_hang() -> None:
    """The child beats, and says since when it has been busy; beats of an idle child mean nothing."""
    life = Life(ChildPolicy(run_limit_seconds=5, heartbeat_timeout_seconds=10))
    life.do(Start(), READY)
    since_ns = round(life.now * NS_PER_SECOND)
    assert life.after(5, Reported(Heartbeat(busy_since_ns=since_ns))) == []
    assert life.after(0.1, Tick()) == [Kill("a run has been on its device for more than 5 s")]
    idle = Life(ChildPolicy(run_limit_seconds=5))
    idle.do(Start(), READY, Reported(Heartbeat(busy_since_ns=0)), Reported(Heartbeat()))
    assert idle.after(6, Tick()) == []


def test_a_child_that_hangs_while_it_drains_is_killed() -> None:
    """Its calls are lost; the node need not wait for them until the deadline."""
    life = Life(ChildPolicy(heartbeat_timeout_seconds=10))
    life.do(Start(), READY, Drain())
    assert life.after(10.5, Tick()) == [Kill("no heartbeat for 10 s")]
    assert life.do(SIGKILLED) == []
    assert life.machine.state is State.EXITED


def test_a_restarted_child_inherits_nothing() -> None:
    """Neither the beats of its former life, nor that it was killed."""
    life = Life(ChildPolicy(run_limit_seconds=5, heartbeat_timeout_seconds=10))
    life.do(Start(), READY, Reported(Heartbeat(busy_since_ns=0)))
    assert life.after(6, Tick()) == [Kill("a run has been on its device for more than 5 s")]
    life.do(SIGKILLED)
    assert life.after(1, Tick()) == [Spawn()]
    assert life.after(6, READY) == []
    assert life.after(10.5, Tick()) == [Kill("no heartbeat for 10 s")]
    assert life.machine.uptime_seconds(round(life.now * NS_PER_SECOND)) == pytest.approx(16.5)


reports: st.SearchStrategy[Report] = st.one_of(
    st.builds(Heartbeat, st.none() | st.integers(0, 10**10), st.booleans()),
    st.just(Loading(1, 2)),
    st.just(Ready(1, 2)),
    st.just(Failed("why")),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.just(Start()),
    st.builds(Reported, reports),
    st.builds(Exited, st.sampled_from([0, 1, 3, 78, -9, -11, -15])),
    st.just(Tick()),
    st.just(Drain()),
    st.builds(Stop, st.booleans()),
)
policies = st.builds(ChildPolicy, st.integers(0, 4), st.sampled_from([0.0, 10.0]), st.sampled_from([0.0, 5.0]))


@given(policies, st.lists(st.tuples(st.floats(0, 100), events), max_size=60))
def test_whatever_happens_the_whole_state_stays_right(policy: ChildPolicy, history: list[tuple[float, Event]]) -> None:
    """One process at a time, started only before the drain; one SIGKILL for each; an end is an end.

    After any events, legal or not, the state is one of the table's, and steps agree with the process there is.
    """
    life, processes, ending, kills = Life(policy), 0, False, 0
    for seconds, event in history:
        life.now += seconds
        before = (life.machine.state, repr(life.machine))
        try:
            steps = life.do(event)
        except ValueError:
            assert (life.machine.state, repr(life.machine)) == before
            continue
        ending = ending or isinstance(event, Drain | Stop)
        processes -= isinstance(event, Exited)
        for step in steps:
            match step:
                case Spawn():
                    processes, kills = processes + 1, 0
                    assert not ending
                case Kill():
                    kills += 1
                case Terminate():
                    assert life.machine.state is State.STOPPING
                case RestartLater(delay):
                    assert 1 <= delay <= 30
                    assert not ending
                case GiveUp():
                    assert life.machine.state is State.FATAL
        assert processes == (life.machine.state in ALIVE)
        assert kills <= 1
        assert life.machine.state not in ({State.STARTING, State.RUNNING, State.BACKOFF} if ending else {State.EXITED})
