"""What the workers serve, as one immutable value: model -> replicas, and the node's merged index.

A table is built whole from the newest report of every worker that answers, and replaced whole; whoever routes takes
one reference and sees one generation. A model may be listed by a worker that cannot run it (still loading, or
broken): such a worker is no replica, but it knows the reason, so it is the one to ask when there is no replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from reactant_node.kserve.metadata import IndexEntry

READY = "READY"

_RANK = {READY: 0, "LOADING": 1, "UNLOADING": 2}
"""Of several workers' states for a model the node shows the best; states not listed come last."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker answered when asked: ServerReady, and every row of its index."""

    ready: bool
    models: tuple[IndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """One generation.

    Attributes:
        generation: counts up by one with every table; 0 is the empty one before any answer.
        workers: names of all workers that answer, sorted.
        ready_workers: those that said they are ready.
        replicas: workers that can run a model now, sorted; models without one are absent.
        listed: workers that name a model at all, in whatever state, sorted.
        index: the node's rows, sorted by name and version.
    """

    generation: int = 0
    workers: tuple[str, ...] = ()
    ready_workers: frozenset[str] = frozenset()
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    listed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    index: tuple[IndexEntry, ...] = ()

    @property
    def ready(self) -> bool:
        """At least one worker can serve."""
        return bool(self.ready_workers)

    def __str__(self) -> str:
        return f"generation {self.generation}: {len(self.workers)} workers, {len(self.replicas)} models"


def build(generation: int, reports: Mapping[str, WorkerReport]) -> RoutingTable:
    """The table for the newest report of each answering worker, by worker name."""
    rows = [(worker, model) for worker in sorted(reports) for model in reports[worker].models]
    return RoutingTable(
        generation=generation,
        workers=tuple(sorted(reports)),
        ready_workers=frozenset(worker for worker, report in reports.items() if report.ready),
        replicas=_workers_by_model((worker, model.name) for worker, model in rows if model.state == READY),
        listed=_workers_by_model((worker, model.name) for worker, model in rows),
        index=merge_index(model for _, model in rows),
    )


def _workers_by_model(pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    # A worker has a row per version; dict keys keep the sorted order and drop the repeats.
    workers: dict[str, dict[str, None]] = {}
    for worker, model in pairs:
        workers.setdefault(model, {})[worker] = None
    return MappingProxyType({model: tuple(names) for model, names in workers.items()})


def merge_index(rows: Iterable[IndexEntry]) -> tuple[IndexEntry, ...]:
    """One row per name and version out of many workers' rows: READY if it is anywhere, else the best state there is."""
    best: dict[tuple[str, str], IndexEntry] = {}
    for row in rows:
        key = (row.name, row.version)
        if key not in best or _rank(row) < _rank(best[key]):
            best[key] = row
    return tuple(best[key] for key in sorted(best))


def _rank(row: IndexEntry) -> int:
    return _RANK.get(row.state, len(_RANK))
