"""Which requests run next: per-model queues, joined into batches, one execution at a time.

The device runs one execution at a time and cannot be interrupted, so everything is decided at the one moment it is
free. `plan_dispatch` decides there and takes what it decided out of the queues; the caller runs it and tells what it
took (`record`). Nothing here runs, waits, or reads a clock: time is an argument, and a scheduler with a queue is a
value one can ask questions of.

One decision, in this order. (Commands, such as loading a model, are the caller's: they go between two plans, before
any request.)

1. **Late work goes out.** Every request whose deadline has come leaves its queue, wherever it stands. It costs no
   device time, no longer makes its model look urgent, and its place in the bounded queue is free.
2. **Committed calls.** A running meta model has spent device time and waits for these: the oldest goes first,
   whatever the discipline says.
3. **The discipline** (`disciplines.py`) picks among the models that have requests and do not hold them for company.
4. **The batch** (`batching.py`) is the leading run of that queue, at a size the model allows.
5. **Laxity, under edf only.** A request that would be late by the time the run ends is shed before it starts;
   committed calls are not. The rest runs at the size the batch was planned for where sizes are compiled, and at its
   own rows otherwise. When nobody is left, the decision starts again at 2.

Laxity rests on an estimate, and a wrong one could silence a model for good, since what never runs is never measured
again: one slow first run, and all requests look hopeless. So after `SHEDS_BEFORE_PROBE` batches in a row were shed
whole, the next one runs in spite of the estimate, and corrects it.

**Fairness** is over device time, not over requests: after each run its model is charged what was measured, failed or
not. Usage fades with the half-life, so a model that was alone for long and meets a new neighbour steps back until
both have their share of what is remembered. That is the memory the operator configures. A score that is divided by
cost goes wrong below zero, where the most expensive model would win: there neither cost nor cap counts, and what is
left over goes by weight; `disciplines.py` has the argument.

**Every ticket that was admitted comes out once**: in a plan, dispatched or expired; as withdrawn; or handed back by
`remove_model` and `drain`. Nothing else takes a ticket out, and none is kept after that.

**Effort.** A plan looks at each model once, and reads the run that each queue would take next, once after each change
of that queue; a row limit bounds that run. Enqueueing and withdrawing do not depend on the length of any queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Generic, TypeVar

from reactant_node.config.schema import ModelPolicy, SchedulerConfig
from reactant_node.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.disciplines import Candidate, discipline
from reactant_node.scheduling.model_state import Batch, ModelSnapshot, ModelState
from reactant_node.scheduling.queues import Ticket

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """What to do now.

    Attributes:
        batch: to run; None: nothing may run now.
        expired: to be answered with a passed deadline. They are out of the queue.
        wake_ns: without a batch: when to ask again if nothing arrives; None: only when something does.
    """

    batch: Batch[T] | None
    expired: tuple[Ticket[T], ...]
    wake_ns: int | None


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """The whole scheduler at one moment.

    Attributes:
        discipline: `fair`, `fifo` or `edf`.
        models: by name.
    """

    discipline: str
    models: Mapping[str, ModelSnapshot]


class Scheduler(Generic[T]):
    """Owns all queues, costs and usage. Not locked: one thread at a time, by whatever lock the caller has.

    `T` is what the caller runs for one request; it is handed back as it came.

    Args:
        config: `scheduler.*`; its `models` give weights and row limits by name.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._rank = discipline(config)
        self._models: dict[str, ModelState[T]] = {}
        self._homes: dict[Ticket[T], ModelState[T]] = {}

    def __repr__(self) -> str:
        return f"<Scheduler {self._config.discipline}, {len(self._models)} models, {len(self)} queued>"

    def __len__(self) -> int:
        """Waiting requests."""
        return len(self._homes)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def add_model(self, name: str, limits: BatchLimits) -> None:
        """Accept requests for a model.

        Raises:
            AlreadyExists: there is one of that name.
        """
        self._refuse_taken(name)
        self._models[name] = ModelState(limits, self._policy(name), self._config)

    def replace_model(self, name: str, limits: BatchLimits) -> None:
        """The model's graph is another one now: what was learned of its costs is forgotten.

        Queue, usage and weight stay. Tickets for the old graph stay apart from new ones if their variants differ.

        Raises:
            NotFound: there is no such model.
        """
        model = self._model(name)
        model.apply_limits(limits, self._policy(name))
        model.costs.clear()

    def rename_model(self, old: str, new: str) -> None:
        """Go on under another name, with the policy configured for it. Waiting requests stay where they are.

        Raises:
            NotFound: there is no model `old`.
            AlreadyExists: there is a model `new`.
        """
        model = self._model(old)
        self._refuse_taken(new)
        self._models[new] = self._models.pop(old)
        model.apply_policy(self._policy(new))

    def remove_model(self, name: str) -> tuple[Ticket[T], ...]:
        """Forget a model; what still waits for it, in order, for the caller to answer.

        Raises:
            NotFound: there is no such model.
        """
        model = self._model(name)
        del self._models[name]
        return self._empty(model)

    def drain(self) -> tuple[Ticket[T], ...]:
        """Take out all that waits, for the caller to answer; the models stay."""
        return tuple(ticket for model in self._models.values() for ticket in self._empty(model))

    def set_weight(self, name: str, weight: float) -> None:
        """Change a model's part of the device under `fair`, from the next plan on.

        Raises:
            NotFound: there is no such model.
            InvalidArgument: the weight is not a positive, finite number.
        """
        model = self._model(name)
        if not (isfinite(weight) and weight > 0):
            raise InvalidArgument(f"model '{name}': weight is {weight}; use a number above 0")
        model.weight = weight

    def limits(self, name: str) -> BatchLimits:
        """What is joined of a model's requests: what the model allows, within what is configured.

        Raises:
            NotFound: there is no such model.
        """
        return self._model(name).queue.limits

    def seed_cost(self, name: str, batch_size: int, compute_ns: int) -> None:
        """Learn from a warm-up run, which nobody is charged for.

        Raises:
            NotFound: there is no such model.
        """
        self._model(name).costs.record(batch_size, compute_ns)

    def enqueue(self, name: str, ticket: Ticket[T]) -> None:
        """Admit a request.

        Raises:
            NotFound: there is no such model.
            ResourceExhausted: the model's queue is full.
        """
        model, limit = self._model(name), self._config.max_queue_depth
        if len(model.queue) >= limit and not ticket.committed:
            model.refused += 1
            raise ResourceExhausted(
                f"model '{name}': {len(model.queue)} requests are queued, the limit of scheduler.max_queue_depth; "
                "try later"
            )
        model.queue.push(ticket)
        self._homes[ticket] = model

    def withdraw(self, ticket: Ticket[T]) -> bool:
        """Take a request back; False where it is not queued any more, or never was."""
        model = self._homes.pop(ticket, None)
        if model is None:
            return False
        model.queue.remove(ticket)
        model.withdrawn += 1
        return True

    def plan_dispatch(self, now_ns: int) -> Plan[T]:
        """Decide what runs now, and take it and all that is late out of the queues."""
        expired = self._take_late(now_ns)
        while (name := self._choose(now_ns)) is not None:
            batch, shed = self._models[name].take_batch(name, now_ns)
            self._forget(shed)
            expired += shed
            if batch is not None:
                self._forget(batch.tickets)
                return Plan(batch, tuple(expired), None)
        return Plan(None, tuple(expired), self._wake_ns())

    def record(self, name: str, batch_size: int, compute_ns: int, now_ns: int, *, succeeded: bool = True) -> None:
        """Learn from a run that has ended. The time is charged in any case, the cost learned only from a success.

        A model that was removed while it ran has nothing left to learn.
        """
        model = self._models.get(name)
        if model is not None:
            model.record(batch_size, compute_ns, now_ns, succeeded=succeeded)

    def statistics(self, now_ns: int) -> SchedulerSnapshot:
        """A snapshot as seen from now."""
        shares = self._shares(now_ns)
        models = {name: model.snapshot(now_ns, *shares[name]) for name, model in self._models.items()}
        return SchedulerSnapshot(self._config.discipline, MappingProxyType(models))

    def _model(self, name: str) -> ModelState[T]:
        try:
            return self._models[name]
        except KeyError:
            raise NotFound(f"model '{name}' is not loaded") from None

    def _refuse_taken(self, name: str) -> None:
        if name in self._models:
            raise AlreadyExists(f"model '{name}' is loaded already")

    def _policy(self, name: str) -> ModelPolicy:
        return self._config.models.get(name, ModelPolicy())

    def _empty(self, model: ModelState[T]) -> tuple[Ticket[T], ...]:
        tickets = tuple(model.queue.take(len(model.queue)))
        self._forget(tickets)
        return tickets

    def _forget(self, tickets: Iterable[Ticket[T]]) -> None:
        for ticket in tickets:
            del self._homes[ticket]

    def _take_late(self, now_ns: int) -> list[Ticket[T]]:
        late = [ticket for model in self._models.values() for ticket in model.take_late(now_ns)]
        self._forget(late)
        return late

    def _choose(self, now_ns: int) -> str | None:
        """The model that goes next; None where no model may."""
        waiting = {name: model for name, model in self._models.items() if model.queue}
        committed = [(model.queue.front.enqueued_ns, name) for name, model in waiting.items() if model.queue.committed]
        if committed:
            return min(committed)[1]
        ready = {name: model for name, model in waiting.items() if model.hold_until_ns() <= now_ns}
        if len(ready) <= 1:
            return next(iter(ready), None)
        shares = self._shares(now_ns)
        return min((_candidate(name, model, *shares[name]) for name, model in ready.items()), key=self._rank).model

    def _shares(self, now_ns: int) -> dict[str, tuple[float, float]]:
        """Of every model, also the idle ones: its part of all weights, and of all recent device time."""
        weights = sum(model.weight for model in self._models.values())
        usage_ns = {name: model.usage.at_ns(now_ns) for name, model in self._models.items()}
        all_ns = sum(usage_ns.values()) or 1.0
        return {name: (model.weight / weights, usage_ns[name] / all_ns) for name, model in self._models.items()}

    def _wake_ns(self) -> int | None:
        """When the first batch that is held for company has to go."""
        holds = [model.hold_until_ns() for model in self._models.values() if model.queue]
        return min(holds, default=None)


def _candidate(name: str, model: ModelState[T], share: float, used: float) -> Candidate:
    return Candidate(
        model=name,
        front_enqueued_ns=model.queue.front.enqueued_ns,
        earliest_deadline_ns=model.queue.earliest_deadline_ns(),
        requests=model.queue.shape.requests,
        cost_ns=model.next_cost_ns,
        share=share,
        used=used,
    )
