"""One model's queue: lanes, leaving from anywhere, the earliest deadline, the batch that would go."""

from __future__ import annotations

import pytest

from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.queues import HEAP_SLACK, RequestQueue, Ticket

COALESCING = BatchLimits(coalescable=True)


def ticket(name: str, rows: int = 1, variant: str = "", deadline_ns: int | None = None) -> Ticket[str]:
    """An ordinary request."""
    return Ticket(name, 0, rows, variant, deadline_ns)


def queue_of(*tickets: Ticket[str], limits: BatchLimits = COALESCING) -> RequestQueue[str]:
    """A queue that has been filled in this order."""
    queue: RequestQueue[str] = RequestQueue(limits)
    for one in tickets:
        queue.push(one)
    return queue


def names(queue: RequestQueue[str]) -> str:
    """Payloads in the order of service."""
    return "".join(one.payload for one in queue)


def test_committed_calls_stand_before_all_others_in_their_own_order() -> None:
    """A running meta model's calls go first; among themselves, and among the others, arrival decides."""
    queue = queue_of(ticket("a"), Ticket("m", 1, committed=True), ticket("b"), Ticket("n", 2, committed=True))
    assert names(queue) == "mnab"
    assert (queue.front.payload, queue.committed, len(queue)) == ("m", 2, 4)
    assert repr(queue) == "<RequestQueue 4 waiting, 2 of them committed>"


def test_requests_are_taken_from_the_front_and_removed_anywhere() -> None:
    """What leaves is gone; the rest keeps its order."""
    a, b, c, d = (ticket(name) for name in "abcd")
    queue = queue_of(a, b, c, d)
    queue.remove(c)
    assert queue.take(2) == [a, b]
    assert (names(queue), c in queue, d in queue) == ("d", False, True)


def test_late_requests_are_taken_wherever_they_stand_when_their_deadline_has_come() -> None:
    """Earliest first; the instant of the deadline itself is too late."""
    queue = queue_of(ticket("a"), ticket("b", deadline_ns=20), ticket("c", deadline_ns=10), ticket("d", deadline_ns=21))
    assert [one.payload for one in queue.take_late(20)] == ["c", "b"]
    assert (names(queue), queue.earliest_deadline_ns()) == ("ad", 21)


def test_the_earliest_deadline_forgets_who_left() -> None:
    """Also where an entry below the top of the heap has left first."""
    near, far = ticket("near", deadline_ns=10), ticket("far", deadline_ns=20)
    queue = queue_of(far, near)
    assert queue.earliest_deadline_ns() == 10
    queue.remove(far)
    queue.remove(near)
    assert queue.earliest_deadline_ns() is None


def test_requests_that_come_and_go_behind_an_early_deadline_leave_nothing_behind() -> None:
    """The heap stays in proportion to the queue, though its top never leaves."""
    queue = queue_of(ticket("top", deadline_ns=1))
    for number in range(10 * HEAP_SLACK):
        passing = ticket("passing", deadline_ns=2 + number)
        queue.push(passing)
        queue.remove(passing)
    assert len(queue._deadlines) <= 2 * len(queue) + HEAP_SLACK + 1
    assert queue.earliest_deadline_ns() == 1


@pytest.mark.parametrize(
    ("variants", "limits", "requests", "complete"),
    [
        ("xxx", COALESCING, 3, False),
        ("xxyx", COALESCING, 2, True),
        ("xyxx", COALESCING, 1, True),
        ("xxx", BatchLimits(), 1, True),
        ("xxx", BatchLimits(coalescable=True, max_rows=3), 3, True),
        ("xxx", BatchLimits(coalescable=True, max_rows=4), 3, False),
        ("xxx", BatchLimits(coalescable=True, compiled_sizes=(1, 2)), 2, True),
    ],
)
def test_only_the_leading_run_of_one_variant_is_joined(
    variants: str, limits: BatchLimits, requests: int, complete: bool
) -> None:
    """Nothing skips over a request of another shape, and a run that is full or cut off cannot grow."""
    queue = queue_of(*(ticket("", variant=variant) for variant in variants), limits=limits)
    assert (queue.shape.requests, queue.shape.complete) == (requests, complete)


def test_the_planned_batch_follows_every_change_of_the_queue_and_its_limits() -> None:
    """Arrivals, departures and new limits are all seen at once."""
    a, b = ticket("a", rows=2), ticket("b", rows=3)
    queue = queue_of(a)
    assert queue.shape.batch_size == 2
    queue.push(b)
    assert queue.shape.batch_size == 5
    queue.limits = BatchLimits(coalescable=True, max_rows=4)
    assert queue.shape.batch_size == 2
    queue.remove(a)
    assert queue.shape.batch_size == 3


def test_committed_calls_share_an_execution_with_ordinary_ones_of_their_variant() -> None:
    """They are joined in the order of service."""
    queue = queue_of(ticket("a", rows=4), Ticket("m", 5, 1, "", committed=True))
    assert [one.payload for one in queue.take(queue.shape.requests)] == ["m", "a"]
