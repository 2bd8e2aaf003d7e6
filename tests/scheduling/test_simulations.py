"""Loads of many seconds against each discipline, in simulated time: who gets the device, who waits, who is late."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from reactant_node.config.schema import ModelPolicy, SchedulerConfig
from reactant_node.scheduling.batching import BatchLimits
from tests.support.scheduling_simulation import MS, SECOND, Simulation

ALONE = BatchLimits()
JOINED = BatchLimits(coalescable=True, max_rows=8)


def saturated(weights: Mapping[str, float], costs_ms: Mapping[str, float], idle: int = 0) -> dict[str, float]:
    """Parts of the device that saturated models get in 10 s, beside idle ones; 16 callers each, coalescing."""
    policies = {name: ModelPolicy(weight=weight) for name, weight in weights.items()}
    models = dict.fromkeys([*weights, *(f"idle{number}" for number in range(idle))], JOINED)
    simulation = Simulation(
        SchedulerConfig(models=policies),
        models,
        lambda model, size: round(costs_ms[model] * MS * (0.5 + 0.5 * size)),
        frozenset(weights),
    )
    for name in weights:
        for _ in range(16):
            simulation.arrive(name, 0)
    simulation.run(10 * SECOND)
    busy = sum(simulation.busy_ns.values())
    assert busy == pytest.approx(10 * SECOND, rel=0.02)
    return {name: simulation.busy_ns[name] / busy for name in weights}


@pytest.mark.parametrize("idle", [0, 1, 50])
@pytest.mark.parametrize("costs_ms", [(1, 1), (1, 20), (20, 1), (0.3, 100)])
def test_saturated_models_share_the_device_by_weight(costs_ms: tuple[float, float], idle: int) -> None:
    """1 to 3 within a tenth, whatever a run costs, and however many idle models are loaded beside them."""
    parts = saturated({"one": 1.0, "three": 3.0}, {"one": costs_ms[0], "three": costs_ms[1]}, idle)
    assert parts["three"] / parts["one"] == pytest.approx(3.0, rel=0.1)


def test_five_saturated_models_of_very_different_cost_share_by_weight() -> None:
    """Neither the cheapest nor the dearest gains or starves."""
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    parts = saturated(weights, {"a": 8, "b": 0.5, "c": 10, "d": 1, "e": 3}, idle=7)
    assert parts == {name: pytest.approx(weight / 15, rel=0.1) for name, weight in weights.items()}


def test_a_weight_changed_live_takes_effect() -> None:
    """From an even split to three quarters, within the memory of the average."""
    simulation = Simulation(
        SchedulerConfig(ema_halflife_seconds=1.0), {"a": ALONE, "b": ALONE}, lambda *_: MS, frozenset("ab")
    )
    for name in "ab":
        simulation.arrive(name, 0)
        simulation.arrive(name, 0)
    simulation.run(5 * SECOND)
    assert simulation.busy_ns["a"] / simulation.busy_ns["b"] == pytest.approx(1.0, rel=0.05)
    simulation.scheduler.set_weight("a", 3.0)
    simulation.run(15 * SECOND)
    before = dict(simulation.busy_ns)
    simulation.run(25 * SECOND)
    after = {name: simulation.busy_ns[name] - before[name] for name in "ab"}
    assert after["a"] / after["b"] == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("idle", [0, 50])
def test_a_light_model_waits_for_one_run_of_the_heavy_one_that_floods_it(idle: int) -> None:
    """Its p99 wait stays within two heavy runs, though hundreds of heavy requests are queued."""
    heavy_ns, light_ns = 40 * MS, 1 * MS
    models = {"heavy": ALONE, "light": ALONE} | {f"idle{number}": ALONE for number in range(idle)}
    costs = {"heavy": heavy_ns, "light": light_ns}
    simulation = Simulation(SchedulerConfig(), models, lambda model, _: costs[model], frozenset(["heavy"]))
    for _ in range(500):
        simulation.arrive("heavy", 0)
    dice = random.Random(7)  # noqa: S311 - a load, not a secret
    for _ in range(400):
        simulation.arrive("light", dice.randrange(20 * SECOND))
    simulation.run(21 * SECOND)
    light = simulation.scheduler.statistics(simulation.now_ns).models["light"]
    assert light.requests == 400
    assert light.wait_ns(0.99) <= 2 * heavy_ns
    assert simulation.busy_ns["heavy"] > 19 * SECOND


def deadlines_met(discipline: str, seed: int) -> tuple[int, int]:
    """Deadlines met of all that came, at 120 % load for 20 s: three models, budgets from 30 ms to 3 s."""
    costs = {"a": 4 * MS, "b": 8 * MS, "c": 12 * MS}
    budgets = {"a": (30 * MS, 200 * MS), "b": (100 * MS, SECOND), "c": (500 * MS, 3 * SECOND)}
    simulation = Simulation(
        SchedulerConfig(discipline=discipline), dict.fromkeys(costs, ALONE), lambda model, _: costs[model]
    )
    dice = random.Random(seed)  # noqa: S311 - a load, not a secret
    requests = round(1.2 * 20 * SECOND / 8 / MS)
    for _ in range(requests):
        model = dice.choice("abc")
        simulation.arrive(model, dice.randrange(20 * SECOND), dice.randint(*budgets[model]))
    simulation.run(30 * SECOND)
    assert len(simulation.answers) == requests
    return sum(answer.met for answer in simulation.answers), requests


@pytest.mark.parametrize("seed", range(5))
def test_edf_meets_more_deadlines_than_fifo_at_120_percent_load(seed: int) -> None:
    """Clearly more, and nearly as many as the device can serve at all."""
    edf, fifo = deadlines_met("edf", seed), deadlines_met("fifo", seed)
    assert edf[0] > 1.1 * fifo[0]
    assert edf[0] > 0.75 * edf[1]


@pytest.mark.parametrize("budget_ns", [None, 1_000 * SECOND])
@pytest.mark.parametrize("limits", [ALONE, JOINED])
def test_with_equal_deadlines_edf_is_fifo(limits: BatchLimits, budget_ns: int | None) -> None:
    """The identical order, model by model and request by request."""

    def order(discipline: str) -> list[tuple[str, int, int | None]]:
        models = dict.fromkeys("abc", limits)
        config = SchedulerConfig(discipline=discipline)
        simulation = Simulation(config, models, lambda model, size: ord(model) % 7 * size * MS)
        dice = random.Random(3)  # noqa: S311 - a load, not a secret
        for _ in range(800):
            at_ns = dice.randrange(SECOND)
            simulation.arrive(dice.choice("abc"), at_ns, None if budget_ns is None else budget_ns - at_ns)
        simulation.run(60 * SECOND)
        return [(it.arrival.model, it.arrival.at_ns, it.started_ns) for it in simulation.answers]

    assert len(order("fifo")) == 800
    assert order("edf") == order("fifo")


@pytest.mark.parametrize("discipline", ["fair", "fifo", "edf"])
def test_a_burst_on_many_models_is_served_in_few_joined_runs(discipline: str) -> None:
    """Thousands of requests over fifty models, all answered; 8 at a time."""
    models = dict.fromkeys((f"m{number}" for number in range(50)), JOINED)
    simulation = Simulation(SchedulerConfig(discipline=discipline), models, lambda *_: MS)
    for number in range(4_000):
        simulation.arrive(f"m{number % 50}", number)
    simulation.run(2 * SECOND)
    histograms = [model.batch_sizes for model in simulation.scheduler.statistics(2 * SECOND).models.values()]
    assert len(simulation.answers) == 4_000
    assert sum(sum(histogram.values()) for histogram in histograms) <= 501
