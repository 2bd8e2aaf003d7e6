"""One model's waiting requests, oldest first.

Two lanes, one after the other: calls that a running meta model makes (`committed`; device time has been spent on
them already), then everything else. Each lane keeps arrival order and is never reordered. Both are linked lists with
an index (`OrderedDict`), since a plain dict's front gets slow when it is emptied from there, and a deque is slow to
take from the middle: taking, and withdrawing anywhere, cost the same in a queue of ten as of a million.

The earliest deadline comes from a heap beside the lanes. Who leaves stays in the heap until it surfaces or until the
dead outnumber the living, whichever is first.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Generic, TypeVar

from reactant_node.scheduling.batching import BatchLimits, BatchShape, Window, plan_batch

T = TypeVar("T")

HEAP_SLACK = 64
"""Entries of the deadline heap that are not worth a clean-up."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket(Generic[T]):
    """One request, as far as scheduling knows it. Identity counts: each is queued once.

    Attributes:
        payload: what the caller runs; opaque here.
        enqueued_ns: when it arrived.
        rows: extent of its batch axis, 0 included; 1 where it has none.
        variant: requests share an execution only where this is equal. It has to cover all that must be the same
            across a batch: trailing shapes, datatypes, inputs without a batch axis, the session.
        deadline_ns: absolute; None: it has all the time.
        committed: a running meta model waits for it. It goes before everything else, is not refused by a full queue
            and not shed for what it would cost; an answer that is too late is dropped all the same.
    """

    payload: T
    enqueued_ns: int
    rows: int = 1
    variant: Hashable = None
    deadline_ns: int | None = None
    committed: bool = False


class RequestQueue(Generic[T]):
    """The queue of one model. Belongs to its scheduler, and to whatever lock guards that.

    The batch that would go next is kept until the queue changes: choosing among models asks for it each time.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._committed: OrderedDict[Ticket[T], None] = OrderedDict()
        self._ordinary: OrderedDict[Ticket[T], None] = OrderedDict()
        self._deadlines: list[tuple[int, int, Ticket[T]]] = []
        self._serials = count()
        self._shape: BatchShape | None = None

    def __len__(self) -> int:
        return len(self._committed) + len(self._ordinary)

    def __iter__(self) -> Iterator[Ticket[T]]:
        """In the order of service."""
        return chain(self._committed, self._ordinary)

    def __contains__(self, ticket: Ticket[T]) -> bool:
        return ticket in self._lane(ticket)

    def __repr__(self) -> str:
        return f"<RequestQueue {len(self)} waiting, {len(self._committed)} of them committed>"

    @property
    def limits(self) -> BatchLimits:
        """What the model allows."""
        return self._limits

    @limits.setter
    def limits(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._shape = None

    @property
    def front(self) -> Ticket[T]:
        """The request that is served next. The queue must not be empty."""
        return next(iter(self))

    @property
    def committed(self) -> int:
        """How many committed calls wait; they are at the front."""
        return len(self._committed)

    @property
    def shape(self) -> BatchShape:
        """The batch that would go now. The queue must not be empty."""
        if self._shape is None:
            self._shape = plan_batch(self._window(), self._limits)
        return self._shape

    def push(self, ticket: Ticket[T]) -> None:
        """Add behind its lane."""
        self._lane(ticket)[ticket] = None
        if ticket.deadline_ns is not None:
            heapq.heappush(self._deadlines, (ticket.deadline_ns, next(self._serials), ticket))
        self._shape = None

    def remove(self, ticket: Ticket[T]) -> None:
        """Take one out, wherever it stands. It must be in the queue."""
        del self._lane(ticket)[ticket]
        self._shape = None
        if len(self._deadlines) > 2 * len(self) + HEAP_SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self]
            heapq.heapify(self._deadlines)

    def take(self, requests: int) -> list[Ticket[T]]:
        """Take that many from the front, in the order of service."""
        taken = list(islice(self, requests))
        for ticket in taken:
            self.remove(ticket)
        return taken

    def take_late(self, now_ns: int) -> list[Ticket[T]]:
        """Take out every request whose deadline has come, wherever it stands, earliest first."""
        late = []
        while (deadline_ns := self.earliest_deadline_ns()) is not None and deadline_ns <= now_ns:
            ticket = heapq.heappop(self._deadlines)[2]
            self.remove(ticket)
            late.append(ticket)
        return late

    def earliest_deadline_ns(self) -> int | None:
        """Of all waiting requests; None where none has a deadline."""
        while self._deadlines and self._deadlines[0][2] not in self:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _lane(self, ticket: Ticket[T]) -> OrderedDict[Ticket[T], None]:
        return self._committed if ticket.committed else self._ordinary

    def _window(self) -> Window:
        """Where the front request's company ends: another variant, enough rows, or the end of the queue."""
        if not self._limits.coalescable:
            return Window((self.front.rows,), closed=True)
        most_rows, variant = self._limits.most_rows, self.front.variant
        rows: list[int] = []
        total = 0
        for ticket in self:
            if total >= most_rows or ticket.variant != variant:
                return Window(tuple(rows), closed=True)
            rows.append(ticket.rows)
            total += ticket.rows
        return Window(tuple(rows), closed=total >= most_rows)
