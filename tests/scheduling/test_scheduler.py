"""The whole decision, by handing a scheduler requests and a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import pytest

from reactant_node.config.schema import ModelPolicy, SchedulerConfig
from reactant_node.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.scheduling.model_state import EXACT_SIZES, SHEDS_BEFORE_PROBE, WAITS_KEPT, Batch
from reactant_node.scheduling.queues import Ticket
from reactant_node.scheduling.scheduler import Plan, Scheduler

COALESCING = BatchLimits(coalescable=True)
MS = 1_000_000


def scheduler(
    name: str = "fifo",
    limits: BatchLimits = COALESCING,
    models: Sequence[str] = ("m",),
    max_queue_depth: int = 1024,
    policies: dict[str, ModelPolicy] | None = None,
) -> Scheduler[str]:
    """A scheduler of one discipline with its models added."""
    made: Scheduler[str] = Scheduler(
        SchedulerConfig(discipline=name, max_queue_depth=max_queue_depth, models=policies or {})
    )
    for model in models:
        made.add_model(model, limits)
    return made


def enqueue(
    to: Scheduler[str],
    letters: str,
    *,
    model: str = "m",
    enqueued_ns: int = 0,
    rows: int = 1,
    variant: str = "",
    deadline_ns: int | None = None,
    committed: bool = False,
) -> None:
    """One ticket per letter, arriving a nanosecond apart."""
    for at_ns, letter in enumerate(letters, start=enqueued_ns):
        to.enqueue(model, Ticket(letter, at_ns, rows, variant, deadline_ns, committed))


def ran(plan: Plan[str]) -> tuple[str, str, int] | None:
    """Model, payloads and batch size of what runs."""
    if plan.batch is None:
        return None
    return plan.batch.model, payloads(plan.batch.tickets), plan.batch.batch_size


def payloads(tickets: Sequence[Ticket[str]]) -> str:
    """In order."""
    return "".join(ticket.payload for ticket in tickets)


def dispatched(from_: Scheduler[str], now_ns: int = 0) -> list[str]:
    """Plan until nothing runs any more."""
    order = []
    while (run := ran(from_.plan_dispatch(now_ns))) is not None:
        order.append(run[1])
    return order


def test_nothing_queued_plans_nothing() -> None:
    """No batch, nobody expired, no time to wake."""
    assert scheduler().plan_dispatch(0) == Plan(None, (), None)


def test_a_batch_says_whom_it_serves_in_order_and_how_much_is_padding() -> None:
    """The tickets come back as they were handed in, the rest of the batch is padding."""
    it = scheduler(limits=BatchLimits(coalescable=True, compiled_sizes=(4,)))
    enqueue(it, "abc")
    batch = it.plan_dispatch(0).batch
    assert batch is not None
    assert (payloads(batch.tickets), batch.batch_size, batch.rows, batch.padding) == ("abc", 4, 3, 1)
    assert it.plan_dispatch(0).batch is None


def test_requests_of_different_shapes_do_not_mix_and_none_overtakes() -> None:
    """Each run takes the leading requests of one variant."""
    it = scheduler()
    for at_ns, (payload, variant) in enumerate(zip("abcde", "xxyxx", strict=True)):
        it.enqueue("m", Ticket(payload, at_ns, variant=variant))
    assert dispatched(it) == ["ab", "c", "de"]


def test_requests_without_rows_are_served() -> None:
    """Alone as a batch of nothing, and among others."""
    it = scheduler()
    enqueue(it, "a", rows=0)
    assert ran(it.plan_dispatch(0)) == ("m", "a", 0)
    it.record("m", 0, 5, 5)
    enqueue(it, "b", rows=0)
    enqueue(it, "c", rows=2)
    assert ran(it.plan_dispatch(0)) == ("m", "bc", 2)


def test_a_request_beyond_every_limit_goes_alone() -> None:
    """Whether it may is decided before it is queued; here it makes progress, and is not split."""
    it = scheduler(limits=BatchLimits(coalescable=True, max_rows=4))
    enqueue(it, "a", rows=9)
    enqueue(it, "b")
    assert [ran(it.plan_dispatch(0)), ran(it.plan_dispatch(0))] == [("m", "a", 9), ("m", "b", 1)]


def test_the_narrower_of_the_models_limit_and_the_configured_one_holds() -> None:
    """`scheduler.models.<name>.max_batch_size` narrows; it never widens."""
    it = scheduler(models=(), policies={"m": ModelPolicy(max_batch_size=2), "n": ModelPolicy(max_batch_size=9)})
    it.add_model("m", BatchLimits(coalescable=True))
    it.add_model("n", BatchLimits(coalescable=True, max_rows=3))
    enqueue(it, "abcde", model="m")
    enqueue(it, "ABCDE", model="n", enqueued_ns=100)
    assert dispatched(it) == ["ab", "cd", "e", "ABC", "DE"]
    assert {name: model.effective_max_batch_size for name, model in it.statistics(0).models.items()} == {"m": 2, "n": 3}


def test_a_full_queue_refuses_at_once_and_only_for_its_own_model() -> None:
    """The message names model, depth and setting; what leaves makes room again."""
    it = scheduler(models=("m", "n"), max_queue_depth=2)
    enqueue(it, "ab")
    with pytest.raises(
        ResourceExhausted, match=r"model 'm': 2 requests are queued, the limit of scheduler\.max_queue_depth"
    ):
        enqueue(it, "c")
    enqueue(it, "A", model="n")
    assert ran(it.plan_dispatch(0)) == ("m", "ab", 2)
    enqueue(it, "d")
    assert it.statistics(0).models["m"].refused == 1


def test_a_committed_call_is_admitted_to_a_full_queue() -> None:
    """Refusing it would throw away what its meta model has spent; running meta models bound their number."""
    it = scheduler(max_queue_depth=1)
    enqueue(it, "a")
    enqueue(it, "m", committed=True)
    assert dispatched(it) == ["ma"]


def test_a_withdrawn_request_never_runs() -> None:
    """It leaves once; a request that runs or was never queued cannot be withdrawn."""
    it = scheduler()
    first, second = Ticket("a", 0), Ticket("b", 1)
    it.enqueue("m", first)
    it.enqueue("m", second)
    assert (it.withdraw(first), it.withdraw(first), it.withdraw(Ticket("c", 2))) == (True, False, False)
    assert dispatched(it) == ["b"]
    assert not it.withdraw(second)
    assert it.statistics(0).models["m"].withdrawn == 1


def test_committed_calls_go_before_the_discipline_in_arrival_order() -> None:
    """Across models, whoever was to go by fifo; a withdrawn one is skipped."""
    it = scheduler(models=("a", "b", "c"), limits=BatchLimits())
    enqueue(it, "x", model="a")
    stale = Ticket("s", 1, committed=True)
    it.enqueue("a", stale)
    enqueue(it, "y", model="c", enqueued_ns=2, committed=True)
    enqueue(it, "z", model="b", enqueued_ns=3, committed=True)
    it.withdraw(stale)
    assert dispatched(it) == ["y", "z", "x"]


@pytest.mark.parametrize("name", ["fair", "fifo", "edf"])
def test_what_is_late_is_dropped_under_every_discipline_before_anything_is_planned(name: str) -> None:
    """Wherever it stands, committed or not; the live ones fill the batch."""
    it = scheduler(name, limits=BatchLimits(coalescable=True, max_rows=2))
    it.seed_cost("m", 1, 1)
    enqueue(it, "a", deadline_ns=10)
    enqueue(it, "b", enqueued_ns=1)
    enqueue(it, "c", enqueued_ns=2, deadline_ns=9)
    enqueue(it, "d", enqueued_ns=3, deadline_ns=12)
    enqueue(it, "m", enqueued_ns=4, deadline_ns=10, committed=True)
    plan = it.plan_dispatch(10)
    assert (ran(plan), payloads(plan.expired)) == (("m", "bd", 2), "cam")
    assert it.statistics(10).models["m"].expired == 3


def test_expired_requests_are_told_also_when_nothing_runs() -> None:
    """A plan without a batch carries them."""
    it = scheduler(models=("m", "n"))
    enqueue(it, "a", deadline_ns=5)
    enqueue(it, "b", model="n", deadline_ns=6)
    plan = it.plan_dispatch(6)
    assert (plan.batch, payloads(plan.expired), plan.wake_ns, len(it)) == (None, "ab", None, 0)


def test_edf_sheds_what_would_be_late_when_the_run_ends() -> None:
    """By the learned cost of the batch as planned; what remains runs at its own rows."""
    it = scheduler("edf")
    it.seed_cost("m", 3, 100)
    enqueue(it, "a", deadline_ns=101)
    enqueue(it, "b", deadline_ns=100)
    enqueue(it, "c")
    plan = it.plan_dispatch(0)
    assert (ran(plan), payloads(plan.expired)) == (("m", "ac", 2), "b")


def test_what_edf_sheds_leaves_the_compiled_size_as_planned() -> None:
    """The batch was planned at a size that is compiled, and stays there, padded."""
    it = scheduler("edf", limits=BatchLimits(coalescable=True, compiled_sizes=(1, 4)))
    it.seed_cost("m", 4, 100)
    enqueue(it, "ab", deadline_ns=100)
    enqueue(it, "cd", enqueued_ns=2)
    assert ran(it.plan_dispatch(0)) == ("m", "cd", 4)


def test_edf_takes_ten_milliseconds_for_a_model_that_was_never_measured() -> None:
    """A request that has less left is shed."""
    it = scheduler("edf", limits=BatchLimits())
    enqueue(it, "a", deadline_ns=10 * MS)
    enqueue(it, "b", deadline_ns=10 * MS + 1)
    plan = it.plan_dispatch(0)
    assert (ran(plan), payloads(plan.expired)) == (("m", "b", 1), "a")


def test_a_committed_call_is_not_shed_for_what_it_costs() -> None:
    """Its meta model has spent device time; the deadline itself still holds for it."""
    it = scheduler("edf")
    it.seed_cost("m", 2, 100)
    enqueue(it, "m", deadline_ns=50, committed=True)
    enqueue(it, "a", deadline_ns=50)
    plan = it.plan_dispatch(0)
    assert (ran(plan), payloads(plan.expired)) == (("m", "m", 1), "a")


@pytest.mark.parametrize("name", ["fair", "fifo"])
def test_other_disciplines_try_what_is_not_late_yet(name: str) -> None:
    """Laxity is edf's."""
    it = scheduler(name)
    it.seed_cost("m", 1, 100)
    enqueue(it, "a", deadline_ns=50)
    assert ran(it.plan_dispatch(0)) == ("m", "a", 1)


def test_when_a_whole_batch_is_shed_the_next_best_runs_in_the_same_plan() -> None:
    """The device is not left idle, and everybody who was shed is told."""
    it = scheduler("edf", models=("m", "n"))
    it.seed_cost("m", 1, 100)
    enqueue(it, "a", deadline_ns=50)
    enqueue(it, "b", model="n")
    plan = it.plan_dispatch(0)
    assert (ran(plan), payloads(plan.expired)) == (("n", "b", 1), "a")


def test_a_wrong_estimate_does_not_silence_a_model_for_good() -> None:
    """After a row of batches that were shed whole one runs all the same, and the estimate is mended."""
    it = scheduler("edf", limits=BatchLimits())
    it.seed_cost("m", 1, 10**9)
    for _ in range(SHEDS_BEFORE_PROBE):
        enqueue(it, "x", deadline_ns=1_000)
        assert it.plan_dispatch(0).batch is None
    enqueue(it, "a", deadline_ns=1_000)
    assert ran(it.plan_dispatch(0)) == ("m", "a", 1)
    enqueue(it, "b", deadline_ns=1_000)
    assert payloads(it.plan_dispatch(0).expired) == "b"


def test_without_a_queue_delay_nothing_waits() -> None:
    """Not even a request stamped a moment after the planner looked at the clock."""
    it = scheduler()
    enqueue(it, "a", enqueued_ns=100)
    assert ran(it.plan_dispatch(99)) == ("m", "a", 1)
    assert it.statistics(99).models["m"].waits_ns == (0,)


def test_a_queue_delay_holds_an_incomplete_batch_until_its_time_is_over() -> None:
    """The plan says when to ask again; other models run meanwhile."""
    it = scheduler(models=())
    it.add_model("m", BatchLimits(coalescable=True, max_rows=3, max_queue_delay_ns=50))
    it.add_model("n", COALESCING)
    enqueue(it, "ab", enqueued_ns=100)
    assert it.plan_dispatch(149) == Plan(None, (), 150)
    enqueue(it, "A", model="n", enqueued_ns=149)
    assert ran(it.plan_dispatch(149)) == ("n", "A", 1)
    assert ran(it.plan_dispatch(150)) == ("m", "ab", 2)


@pytest.mark.parametrize(
    ("more", "variant", "committed"), [("c", "", False), ("c", "other", False), ("m", "other", True)]
)
def test_a_held_batch_goes_at_once_when_it_cannot_grow(more: str, variant: str, committed: bool) -> None:
    """It is full, cut off by another shape, or a committed call is at its front."""
    it = scheduler(limits=BatchLimits(coalescable=True, max_rows=3, max_queue_delay_ns=50))
    enqueue(it, "ab", variant="")
    assert it.plan_dispatch(1).batch is None
    enqueue(it, more, variant=variant, committed=committed, enqueued_ns=2)
    assert it.plan_dispatch(2).batch is not None


def test_a_held_request_does_not_wait_into_its_deadline() -> None:
    """It goes two runs before."""
    it = scheduler("edf", limits=BatchLimits(coalescable=True, max_queue_delay_ns=1_000))
    it.seed_cost("m", 1, 100)
    enqueue(it, "a", deadline_ns=500)
    assert it.plan_dispatch(0) == Plan(None, (), 300)
    assert ran(it.plan_dispatch(300)) == ("m", "a", 1)


def test_fair_lets_the_model_go_that_used_less() -> None:
    """Runs are charged, failed or not, to the model that made them."""
    it = scheduler("fair", models=("m", "n"), limits=BatchLimits())
    enqueue(it, "ab", model="m")
    enqueue(it, "AB", model="n", enqueued_ns=100)
    assert ran(it.plan_dispatch(0)) == ("m", "a", 1)
    it.record("m", 1, 10, 10, succeeded=False)
    assert ran(it.plan_dispatch(0)) == ("n", "A", 1)
    it.record("n", 1, 20, 30)
    assert ran(it.plan_dispatch(0)) == ("m", "b", 1)
    models = it.statistics(30).models
    assert [models["m"].used, models["n"].used] == pytest.approx([1 / 3, 2 / 3])
    assert (models["m"].costs_ns, models["n"].costs_ns) == ({}, {1: 20.0})


def test_weights_are_configured_by_name_and_changed_live() -> None:
    """Shares count all models, also idle ones."""
    it = scheduler("fair", models=("m", "n"), policies={"n": ModelPolicy(weight=3.0)})
    assert [model.share for model in it.statistics(0).models.values()] == [0.25, 0.75]
    it.set_weight("m", 9.0)
    assert [model.share for model in it.statistics(0).models.values()] == [0.75, 0.25]


@pytest.mark.parametrize("weight", [0.0, -1.0, inf, nan])
def test_a_weight_is_a_positive_finite_number(weight: float) -> None:
    """Anything else is refused and changes nothing."""
    it = scheduler()
    with pytest.raises(InvalidArgument, match=r"model 'm': weight is .*; use a number above 0"):
        it.set_weight("m", weight)
    assert it.statistics(0).models["m"].weight == 1.0


def test_a_renamed_model_keeps_its_requests_and_takes_the_policy_of_its_new_name() -> None:
    """Requests that were queued before run under the new name, and can still be withdrawn."""
    it = scheduler(models=("staging",), policies={"production": ModelPolicy(weight=4.0, max_batch_size=1)})
    it.seed_cost("staging", 1, 7)
    leaving = Ticket("c", 9)
    enqueue(it, "ab", model="staging")
    it.enqueue("staging", leaving)
    it.rename_model("staging", "production")
    assert it.withdraw(leaving)
    assert ran(it.plan_dispatch(0)) == ("production", "a", 1)
    model = it.statistics(0).models["production"]
    assert (model.weight, model.costs_ns, model.queue_depth) == (4.0, {1: 7.0}, 1)
    assert list(it.statistics(0).models) == ["production"]


def test_a_replaced_model_forgets_costs_and_keeps_queue_weight_and_usage() -> None:
    """What runs is another graph with other limits; who waits still waits, and what was used was used."""
    it = scheduler()
    it.set_weight("m", 2.0)
    it.record("m", 1, 7, 7)
    enqueue(it, "ab")
    it.replace_model("m", BatchLimits())
    model = it.statistics(7).models["m"]
    assert (model.weight, model.usage_ns, model.costs_ns, model.queue_depth) == (2.0, 7.0, {}, 2)
    assert dispatched(it) == ["a", "b"]


def test_a_removed_model_hands_its_requests_back_and_takes_no_more() -> None:
    """In the order of service; a run that ends afterwards teaches nobody."""
    it = scheduler()
    enqueue(it, "ab")
    enqueue(it, "m", committed=True)
    assert payloads(it.remove_model("m")) == "mab"
    it.record("m", 1, 1, 1)
    assert (len(it), it.plan_dispatch(0), dict(it.statistics(0).models)) == (0, Plan(None, (), None), {})
    with pytest.raises(NotFound, match="model 'm' is not loaded"):
        enqueue(it, "c")


def test_draining_hands_back_everything_and_keeps_the_models() -> None:
    """For a worker that stops: every caller is answered."""
    it = scheduler(models=("m", "n"))
    enqueue(it, "ab", model="n")
    enqueue(it, "c", model="m")
    assert payloads(it.drain()) == "cab"
    assert (len(it), list(it.statistics(0).models)) == (0, ["m", "n"])


def test_names_are_unique_and_known() -> None:
    """Each operation on a model says which name is wrong."""
    it = scheduler(models=("m", "n"))
    with pytest.raises(AlreadyExists, match="model 'm' is loaded already"):
        it.add_model("m", COALESCING)
    with pytest.raises(AlreadyExists, match="model 'n' is loaded already"):
        it.rename_model("m", "n")
    for operation in (
        lambda: it.remove_model("x"),
        lambda: it.rename_model("x", "y"),
        lambda: it.replace_model("x", COALESCING),
        lambda: it.set_weight("x", 1.0),
        lambda: it.seed_cost("x", 1, 1),
    ):
        with pytest.raises(NotFound, match="model 'x' is not loaded"):
            operation()
    assert list(it.statistics(0).models) == ["m", "n"]


def test_statistics_count_what_was_done_and_do_not_change_afterwards() -> None:
    """Requests, rows without padding, executions per size, waits from arrival to dispatch."""
    it = scheduler(limits=BatchLimits(coalescable=True, compiled_sizes=(4,)))
    enqueue(it, "ab", rows=1, enqueued_ns=10)
    assert it.plan_dispatch(30).batch is not None
    before = it.statistics(30)
    it.record("m", 4, 5, 35)
    it.record("m", EXACT_SIZES + 1, 5, 40)
    after = it.statistics(40).models["m"]
    assert (after.requests, after.rows, after.waits_ns) == (2, 2, (20, 19))
    assert after.batch_sizes == {4: 1, 2 * EXACT_SIZES: 1}
    assert before.models["m"].batch_sizes == {}
    assert before.discipline == "fifo"


@pytest.mark.parametrize(
    ("waits", "p50", "p99"), [([], 0, 0), ([7], 7, 7), ([1, 2], 1, 2), (list(range(1, 101)), 50, 99)]
)
def test_wait_quantiles_are_of_the_nearest_rank(waits: list[int], p50: int, p99: int) -> None:
    """The smallest wait that at least this part of all waits does not exceed."""
    it = scheduler(limits=BatchLimits())
    for wait_ns in reversed(waits):
        enqueue(it, "x", enqueued_ns=1_000 - wait_ns)
        it.plan_dispatch(1_000)
    model = it.statistics(1_000).models["m"]
    assert (model.wait_ns(0.5), model.wait_ns(0.99)) == (p50, p99)


def test_only_the_newest_waits_are_kept() -> None:
    """The oldest make room."""
    it = scheduler(limits=BatchLimits())
    for number in range(WAITS_KEPT + 3):
        enqueue(it, "x", enqueued_ns=0)
        it.plan_dispatch(number)
    waits_ns = it.statistics(0).models["m"].waits_ns
    assert (len(waits_ns), waits_ns[0], waits_ns[-1]) == (WAITS_KEPT, 3, WAITS_KEPT + 2)


def test_a_scheduler_says_what_it_is() -> None:
    """Discipline, models, depth."""
    it = scheduler(models=("m", "n"))
    enqueue(it, "abc")
    assert repr(it) == "<Scheduler fifo, 2 models, 3 queued>"
    assert repr(it._models["m"]) == "<ModelState 3 queued, weight 1, 0 dispatched>"


def test_a_batch_is_a_value() -> None:
    """Equal where model, tickets and size are; the same ticket, not one that looks like it."""
    ticket = Ticket("a", 0)
    assert Batch("m", (ticket,), 1) == Batch("m", (ticket,), 1)
    assert Batch("m", (ticket,), 1) != Batch("m", (Ticket("a", 0),), 1)
