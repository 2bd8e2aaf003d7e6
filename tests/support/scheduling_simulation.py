"""A device that runs what a scheduler plans, in simulated time: seconds of load in milliseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from reactant_node.config.schema import SchedulerConfig
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.queues import Ticket
from reactant_node.scheduling.scheduler import Scheduler

MS = 1_000_000
SECOND = 1_000 * MS


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a load. `deadline_ns` is absolute."""

    model: str
    at_ns: int
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it; without an end it was dropped for its deadline."""

    arrival: Arrival
    started_ns: int | None
    ended_ns: int | None

    @property
    def met(self) -> bool:
        """It ran, and was done before its deadline."""
        deadline_ns = self.arrival.deadline_ns
        return self.ended_ns is not None and (deadline_ns is None or self.ended_ns <= deadline_ns)


class Simulation:
    """One scheduler, one device, one clock. A test feeds arrivals, runs, and reads answers and busy time.

    Args:
        config: of the scheduler.
        models: limits by name.
        cost_ns: true duration of a run, by model and batch size.
        saturated: models whose callers send the next request as soon as they are answered.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        models: Mapping[str, BatchLimits],
        cost_ns: Callable[[str, int], int],
        saturated: frozenset[str] = frozenset(),
    ) -> None:
        self.scheduler: Scheduler[Arrival] = Scheduler(config)
        for name, limits in models.items():
            self.scheduler.add_model(name, limits)
        self.now_ns = 0
        self.answers: list[Answer] = []
        self.busy_ns = dict.fromkeys(models, 0)
        self._cost_ns = cost_ns
        self._saturated = saturated
        self._arrivals: list[tuple[int, int, Arrival]] = []
        self._serials = count()

    def arrive(self, model: str, at_ns: int, budget_ns: int | None = None) -> None:
        """Schedule one request."""
        deadline_ns = None if budget_ns is None else at_ns + budget_ns
        heapq.heappush(self._arrivals, (at_ns, next(self._serials), Arrival(model, at_ns, deadline_ns)))

    def run(self, until_ns: int) -> None:
        """Let time pass; a run that has begun is finished."""
        while self.now_ns < until_ns:
            self._admit()
            plan = self.scheduler.plan_dispatch(self.now_ns)
            self.answers += [Answer(ticket.payload, None, None) for ticket in plan.expired]
            if plan.batch is not None:
                self._execute(plan.batch.model, [it.payload for it in plan.batch.tickets], plan.batch.batch_size)
            else:
                events = [self._arrivals[0][0]] if self._arrivals else [until_ns]
                self.now_ns = min([*events, until_ns] + ([] if plan.wake_ns is None else [plan.wake_ns]))

    def _admit(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            arrival = heapq.heappop(self._arrivals)[2]
            ticket = Ticket(arrival, arrival.at_ns, deadline_ns=arrival.deadline_ns)
            self.scheduler.enqueue(arrival.model, ticket)

    def _execute(self, model: str, arrivals: list[Arrival], batch_size: int) -> None:
        compute_ns = self._cost_ns(model, batch_size)
        started_ns, self.now_ns = self.now_ns, self.now_ns + compute_ns
        self.busy_ns[model] += compute_ns
        self.scheduler.record(model, batch_size, compute_ns, self.now_ns)
        self.answers += [Answer(arrival, started_ns, self.now_ns) for arrival in arrivals]
        for arrival in arrivals:
            if arrival.model in self._saturated:
                self.arrive(arrival.model, self.now_ns)
