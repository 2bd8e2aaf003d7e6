"""Which models a worker begins with.

dynamic, static   all of the repository, or those that `models_include` names
explicit          those that `models_include` names, all where it says `*`, none where it is empty; the rest of
                  the repository is known and waits to be asked for
"""

from __future__ import annotations

from dataclasses import dataclass

from reactant_node.config.schema import WorkerConfig
from reactant_node.models.changes import Observation
from reactant_node.models.observation import observe
from reactant_node.models.repository import ModelFolder, Snapshot, scan

DYNAMIC, EXPLICIT = "dynamic", "explicit"
"""Values of `model_control_mode`; in the third, `static`, the start set is all there will ever be."""

EVERYTHING = "*"
"""In `models_include`, as Triton's --load-model has it."""


@dataclass(frozen=True, slots=True)
class StartSet:
    """The repository as a worker finds it.

    Attributes:
        observation: taken before anything else, so that what changes later is a change.
        snapshot: what is to be loaded, and what is to be said about the rest.
        set_aside: models that wait to be asked for.
    """

    observation: Observation
    snapshot: Snapshot
    set_aside: tuple[ModelFolder, ...] = ()


def included(config: WorkerConfig) -> tuple[str, ...]:
    """Folder names to look at; empty means all."""
    return () if EVERYTHING in config.models_include else config.models_include


def find_start_set(config: WorkerConfig) -> StartSet:
    """Look through the repository; reads files."""
    roots, include = config.model_dirs, included(config)
    observation = observe(roots, include)
    if config.model_control_mode != EXPLICIT:
        return StartSet(observation, scan(roots, include))
    snapshot = scan(roots, include) if config.models_include else Snapshot()
    return StartSet(observation, snapshot, tuple(it for it in scan(roots).models if it not in snapshot.models))
