"""A component is restarted when it fails, and given up when it cannot come back."""

from __future__ import annotations

import pytest

from reactant_node.clock import NS_PER_SECOND
from reactant_node.errors import AddressInUse, NodeError
from reactant_node.reports import Ready
from reactant_node.supervisor.component import WatchedComponent


class Part:
    """A component that does what a test says."""

    name = "gateway"

    def __init__(self) -> None:
        self.reason: str | None = None
        self.refusal: NodeError | None = None
        self.ends = True
        self.starts = 0
        self.stops = 0

    def start(self) -> None:
        """Start, or refuse."""
        if self.refusal is not None:
            raise self.refusal
        self.starts += 1
        self.reason = None

    def failure(self, _: int) -> str | None:
        """As set."""
        return self.reason

    def child_ready(self, name: str, ready: Ready) -> None:
        """Nothing."""

    def child_gone(self, name: str) -> None:
        """Nothing."""

    def begin_drain(self) -> None:
        """Nothing."""

    def drained(self) -> bool:
        """Always."""
        return True

    def stop(self, _: float) -> bool:
        """Count."""
        self.stops += 1
        return self.ends


class Watch:
    """A started component and its time, in seconds."""

    def __init__(self) -> None:
        self.part = Part()
        self.watched = WatchedComponent(self.part)
        self.watched.start(0)

    def at(self, seconds: float) -> str | None:
        """Look at it."""
        return self.watched.watch(round(seconds * NS_PER_SECOND))


def test_a_healthy_component_is_left_alone() -> None:
    """However long."""
    watch = Watch()
    assert [watch.at(seconds) for seconds in (0, 1, 1000)] == [None] * 3
    assert (watch.part.starts, watch.part.stops) == (1, 0)
    assert repr(watch.watched) == "<WatchedComponent gateway running, 0 failures in a row>"


def test_one_that_fails_is_stopped_and_started_again_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    """After 1, 2, 4 seconds; the reason is logged."""
    watch, now, waits = Watch(), 0.0, []
    for number in range(1, 4):
        watch.part.reason = "its thread ended"
        watch.at(now)
        assert watch.part.stops == number
        assert repr(watch.watched).startswith("<WatchedComponent gateway to be restarted")
        began = now
        while watch.part.starts == number:
            now += 0.25
            assert watch.at(now) is None
        waits.append(now - began)
    assert waits == [1, 2, 4]
    assert "gateway failed: its thread ended" in caplog.text


def test_a_stable_run_wipes_the_count() -> None:
    """After a minute the next wait is one second again."""
    watch = Watch()
    watch.part.reason = "first"
    watch.at(0)
    watch.at(1)
    watch.part.reason = "second"
    watch.at(61)
    assert watch.at(61.9) is None
    assert watch.part.starts == 2
    watch.at(62)
    assert watch.part.starts == 3


def test_one_that_is_stuck_may_come_loose(caplog: pytest.LogCaptureFixture) -> None:
    """A port that is still taken at the first attempt is tried again."""
    watch = Watch()
    watch.part.reason, watch.part.ends = "its loop has not turned", False
    watch.part.refusal = AddressInUse("port 8001 is taken")
    assert [watch.at(seconds) for seconds in (0, 1)] == [None, None]
    watch.part.refusal = None
    assert watch.at(3) is None
    assert watch.part.starts == 2
    assert "gateway does not end" in caplog.text
    assert "gateway cannot be started: port 8001 is taken" in caplog.text


def test_one_that_cannot_be_started_again_is_given_up_with_the_reason() -> None:
    """After three attempts a new process is the only way."""
    watch = Watch()
    watch.part.reason, watch.part.refusal = "its loop has not turned", AddressInUse("port 8001 is taken")
    answers = [watch.at(seconds) for seconds in (0, 1, 3, 6.9, 7)]
    assert answers == [None] * 4 + ["gateway cannot be started again: port 8001 is taken"]


def test_the_first_start_fails_as_the_component_says() -> None:
    """Nothing is retried before the node has ever run."""
    part = Part()
    part.refusal = AddressInUse("port 8001 is taken")
    with pytest.raises(AddressInUse):
        WatchedComponent(part).start(0)
