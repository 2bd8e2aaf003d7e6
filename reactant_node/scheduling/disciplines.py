"""Whose turn it is: the three disciplines, each a rank over the models that have something to run; the lowest goes.

`fifo`: the oldest front request. `edf`: the earliest deadline anywhere in the queue, none last; then as fifo. `fair`:
see below; then as fifo. Names decide what is left, so that the same state always gives the same choice. A discipline
chooses the model, never the request: each queue is served from its front.

**Fair.** Each model is entitled to a share of the device, its weight by the sum of the weights of all models, and has
used a part of it lately. While it has used less than its share it is owed something; the more, and the cheaper it is
to pay, the sooner its turn:

    score = min(share - used, cap) / cost         for used < share

The cap (`recency_penalty_cap`) keeps one large debt from outbidding every small one for long, the division keeps an
expensive run from going first on a marginal edge. A batch that joins several requests is priced at
`1 - coalescing_discount` of its cost: it is larger because it serves more callers, and that should not count against
it.

**Beyond the share** the same formula goes wrong, since dividing a negative number by a larger one brings it nearer to
zero: among models that are owed nothing the most expensive would always win. Multiplying there instead would turn
that round and only exchange the victim: as soon as both models are at the negative cap, the cheapest takes all that
is left and the others fall back to their bare shares. That is no corner case. The shares of idle models count in the
sum, so on a node with a hundred loaded and two busy models both busy ones are far beyond their hundredth all the time.
So cost and cap end where the debt ends. What is left over belongs to nobody, and is given out in proportion to the
weights, to the model that is least ahead of its share:

    score = 1 - used / share                      for used >= share

It joins the first form at zero, every model that is owed something comes before every model that is not, and busy
models divide the device by their weights, however many idle ones are loaded and whatever each run costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from reactant_node.config.schema import SchedulerConfig

MIN_COST_NS = 1.0
"""A run that was measured as nothing still divides."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model with a batch that may go now.

    Attributes:
        model: name.
        front_enqueued_ns: arrival of the request at the front of its queue.
        earliest_deadline_ns: of all its waiting requests; None where none has one.
        requests: how many requests the batch would serve.
        cost_ns: what the batch is expected to take.
        share: its part of all weights, over 0 to 1.
        used: its part of all recent device time, 0 to 1.
    """

    model: str
    front_enqueued_ns: int
    earliest_deadline_ns: int | None
    requests: int
    cost_ns: float
    share: float
    used: float


Rank = tuple[float, int, str]
Discipline = Callable[[Candidate], Rank]


def discipline(config: SchedulerConfig) -> Discipline:
    """The rank for `scheduler.discipline`, already checked by the loader."""
    disciplines: dict[str, Discipline] = {
        "fifo": fifo_rank,
        "edf": edf_rank,
        "fair": lambda candidate: fair_rank(candidate, config),
    }
    return disciplines[config.discipline]


def fifo_rank(candidate: Candidate) -> Rank:
    """Oldest front request, then name."""
    return 0.0, candidate.front_enqueued_ns, candidate.model


def edf_rank(candidate: Candidate) -> Rank:
    """Earliest deadline, then oldest front request, then name."""
    deadline = candidate.earliest_deadline_ns
    return inf if deadline is None else deadline, candidate.front_enqueued_ns, candidate.model


def fair_rank(candidate: Candidate, config: SchedulerConfig) -> Rank:
    """Highest score, then oldest front request, then name."""
    return -fair_score(candidate, config), candidate.front_enqueued_ns, candidate.model


def fair_score(candidate: Candidate, config: SchedulerConfig) -> float:
    """What the model is owed per nanosecond of its next run; from zero down, how far it is ahead of its share."""
    owed = candidate.share - candidate.used
    if owed <= 0:
        return 1 - candidate.used / candidate.share
    cost_ns = max(candidate.cost_ns, MIN_COST_NS)
    if candidate.requests > 1:
        cost_ns *= 1 - config.coalescing_discount
    return min(owed, config.recency_penalty_cap) / cost_ns
