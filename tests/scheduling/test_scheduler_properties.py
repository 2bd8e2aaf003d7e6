"""Whatever arrives, is taken back, runs late or fails: every admitted request comes out exactly once, in order."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from reactant_node.config.schema import SchedulerConfig
from reactant_node.errors import ResourceExhausted
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.queues import Ticket
from reactant_node.scheduling.scheduler import Plan, Scheduler

MODELS = st.sampled_from("abc")
DEPTH = 12

SIZES = st.lists(st.integers(1, 6), max_size=3).map(tuple)
LIMITS = st.builds(
    BatchLimits,
    coalescable=st.booleans(),
    max_rows=st.none() | st.integers(1, 6),
    compiled_sizes=SIZES,
    preferred_sizes=SIZES,
    max_queue_delay_ns=st.sampled_from([0, 0, 40]),
)


class EveryTicketComesOutOnce(RuleBasedStateMachine):
    """Keeps its own account of who waits and compares."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.serial = 0
        self.waiting: dict[Ticket[int], str] = {}
        self.came_out: Counter[int] = Counter()
        self.admitted: Counter[int] = Counter()

    @initialize(discipline=st.sampled_from(["fair", "fifo", "edf"]), limits=st.tuples(LIMITS, LIMITS, LIMITS))
    def start(self, discipline: str, limits: tuple[BatchLimits, BatchLimits, BatchLimits]) -> None:
        """Three models of any kind."""
        self.scheduler: Scheduler[int] = Scheduler(SchedulerConfig(discipline=discipline, max_queue_depth=DEPTH))
        self.limits = dict(zip("abc", limits, strict=True))
        self.names = {name: name for name in "abc"}
        for name, its in self.limits.items():
            self.scheduler.add_model(name, its)

    @rule(
        target=tickets,
        model=MODELS,
        rows=st.integers(0, 4),
        variant=st.sampled_from("xy"),
        budget_ns=st.none() | st.integers(0, 200),
        committed=st.sampled_from([False, False, False, True]),
    )
    def enqueue(self, model: str, rows: int, variant: str, budget_ns: int | None, committed: bool) -> object:
        """A request arrives; it is refused only by a full queue."""
        self.serial += 1
        deadline_ns = None if budget_ns is None else self.now_ns + budget_ns
        ticket = Ticket(self.serial, self.now_ns, rows, variant, deadline_ns, committed)
        try:
            self.scheduler.enqueue(self.names[model], ticket)
        except ResourceExhausted:
            assert self.depth(model) >= DEPTH
            return multiple()
        self.waiting[ticket] = model
        self.admitted[ticket.payload] += 1
        return ticket

    @rule(ticket=consumes(tickets))
    def withdraw(self, ticket: Ticket[int]) -> None:
        """A caller goes away: its request leaves if it still waits."""
        assert self.scheduler.withdraw(ticket) == (ticket in self.waiting)
        if ticket in self.waiting:
            self.leave(ticket)

    @rule(elapsed_ns=st.integers(0, 60))
    def wait(self, elapsed_ns: int) -> None:
        """Time passes."""
        self.now_ns += elapsed_ns

    @rule(compute_ns=st.integers(0, 100), succeeded=st.booleans())
    def dispatch(self, compute_ns: int, succeeded: bool) -> None:
        """The device is free; the run may fail."""
        plan = self.scheduler.plan_dispatch(self.now_ns)
        for ticket in plan.expired:
            assert ticket.deadline_ns is not None
            self.leave(ticket)
        if plan.batch is None:
            self.check_idle(plan)
            return
        self.check_batch(plan)
        self.now_ns += compute_ns
        batch = plan.batch
        self.scheduler.record(batch.model, batch.batch_size, compute_ns, self.now_ns, succeeded=succeeded)

    @rule(model=MODELS, limits=LIMITS)
    def replace(self, model: str, limits: BatchLimits) -> None:
        """A new version with other limits."""
        self.limits[model] = limits
        self.scheduler.replace_model(self.names[model], limits)

    @rule(model=MODELS)
    def rename(self, model: str) -> None:
        """Requests survive a new name."""
        old, self.names[model] = self.names[model], self.names[model] + "'"
        self.scheduler.rename_model(old, self.names[model])

    @rule(model=MODELS)
    def unload_and_load(self, model: str) -> None:
        """What waits is handed back in order."""
        back = self.scheduler.remove_model(self.names[model])
        assert list(back) == self.in_order(model)
        for ticket in back:
            self.leave(ticket)
        self.scheduler.add_model(self.names[model], self.limits[model])

    @invariant()
    def depths_agree(self) -> None:
        """Nothing is kept that came out, nothing was lost that did not."""
        if not hasattr(self, "scheduler"):
            return
        models = self.scheduler.statistics(self.now_ns).models
        assert {name: models[self.names[name]].queue_depth for name in "abc"} == {it: self.depth(it) for it in "abc"}
        assert len(self.scheduler) == len(self.waiting)

    def teardown(self) -> None:
        """At the end everything is out, once."""
        if hasattr(self, "scheduler"):
            for ticket in self.scheduler.drain():
                self.leave(ticket)
        assert self.came_out == self.admitted

    def check_batch(self, plan: Plan[int]) -> None:
        """A batch is a prefix of its model's queue: compatible, in order, within the limits."""
        assert plan.batch is not None
        (model,) = {self.waiting[ticket] for ticket in plan.batch.tickets}
        assert plan.batch.model == self.names[model]
        assert list(plan.batch.tickets) == self.in_order(model)[: len(plan.batch.tickets)]
        assert len({ticket.variant for ticket in plan.batch.tickets}) == 1
        assert plan.batch.padding >= 0
        if not self.limits[model].coalescable:
            assert len(plan.batch.tickets) == 1
        if len({ticket.rows for ticket in plan.batch.tickets if ticket.rows}) > 1:
            assert plan.batch.rows <= (self.limits[model].max_rows or plan.batch.rows)
        for ticket in plan.batch.tickets:
            assert ticket.deadline_ns is None or ticket.deadline_ns > self.now_ns
            self.leave(ticket)

    def check_idle(self, plan: Plan[int]) -> None:
        """Only requests that are held for company may still wait, and not beyond the time that was named."""
        if plan.wake_ns is None:
            assert not self.waiting
            return
        assert plan.wake_ns > self.now_ns
        assert {self.limits[model].max_queue_delay_ns for model in self.waiting.values()} == {40}
        self.now_ns = plan.wake_ns
        assert self.scheduler_runs_or_drops()

    def scheduler_runs_or_drops(self) -> bool:
        """Plan again at the time that was named."""
        plan = self.scheduler.plan_dispatch(self.now_ns)
        for ticket in (*plan.expired, *(plan.batch.tickets if plan.batch else ())):
            self.leave(ticket)
        return bool(plan.batch or plan.expired)

    def in_order(self, model: str) -> list[Ticket[int]]:
        """Its waiting tickets in the order of service."""
        mine = [ticket for ticket, its in self.waiting.items() if its == model]
        return sorted(mine, key=lambda ticket: not ticket.committed)

    def depth(self, model: str) -> int:
        """How many wait for it."""
        return sum(1 for its in self.waiting.values() if its == model)

    def leave(self, ticket: Ticket[int]) -> None:
        """It came out of the scheduler."""
        del self.waiting[ticket]
        self.came_out[ticket.payload] += 1


TestEveryTicketComesOutOnce = EveryTicketComesOutOnce.TestCase
TestEveryTicketComesOutOnce.settings = settings(max_examples=150, stateful_step_count=40)
