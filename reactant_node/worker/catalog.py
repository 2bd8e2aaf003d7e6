"""A model's life in one worker, and which models there are.

A model is LOADING until its session exists, then READY, or UNAVAILABLE with the reason. Each entry is a frozen
value; the dispatch thread replaces entries, and a reader takes one reference and sees one generation.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from reactant_node.errors import InvalidArgument, ModelLoadError, NodeError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reactant_node.models.signature import BatchAxis
    from reactant_node.runtime.interface import Session


class ModelState(enum.StrEnum):
    """KServe's repository index states, as Triton spells them."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"


_TRANSITIONS: Mapping[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset(),
    ModelState.UNAVAILABLE: frozenset(),
}


_MAX_VERSION = 2**63 - 1
"""Versions are 64-bit in Triton, which blames the argument for a larger one."""

_NUMBER = re.compile(r"[0-9]{1,19}")
"""As many digits as 64 bits have; Python itself refuses to read a number of some thousands."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One model at one moment.

    Attributes:
        name: the folder's name.
        version: the one that is served.
        state: where it is in its life.
        reason: why it is unavailable, one line; empty otherwise.
        session: set exactly while the state is READY.
        batch_axis: where its rows are, or why it has none.
    """

    name: str
    version: str
    state: ModelState = ModelState.LOADING
    reason: str = ""
    session: Session | None = None
    batch_axis: BatchAxis | None = None

    def moved_to(
        self,
        state: ModelState,
        *,
        reason: str = "",
        session: Session | None = None,
        batch_axis: BatchAxis | None = None,
    ) -> ServedModel:
        """The same model in its next state.

        Raises:
            ValueError: there is no such transition; names both states.
        """
        if state not in _TRANSITIONS[self.state]:
            raise ValueError(f"model {self.name}: no transition from {self.state} to {state}")
        return replace(self, state=state, reason=reason, session=session, batch_axis=batch_axis)


class Catalog:
    """All models of this worker. Written by the dispatch thread, read by any thread through `models`."""

    def __init__(self) -> None:
        self._models: Mapping[str, ServedModel] = MappingProxyType({})
        self._complete = False

    def __repr__(self) -> str:
        states = [model.state for model in self._models.values()]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ModelState)
        return f"<Catalog {counts}, {'complete' if self._complete else 'loading'}>"

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Name to model: one immutable generation, in the order of the repository."""
        return self._models

    def put(self, model: ServedModel) -> None:
        """Add a model or replace it by its next state."""
        self._models = MappingProxyType({**self._models, model.name: model})

    def complete(self) -> None:
        """The start set has been gone through: from now on readiness is a matter of what is ready."""
        self._complete = True

    def not_ready_reason(self) -> str | None:
        """Why this worker cannot serve yet, or None.

        Ready means that every model of the start set is ready or refused, and at least one is ready (WRK-3; a
        refused model never keeps the others from being served, 1.35 item 8).
        """
        models = self._models.values()
        if not self._complete:
            waiting = sum(model.state is ModelState.LOADING for model in models)
            return f"loading models, {waiting} to go"
        if not models:
            return "the model repository holds no model"
        if not any(model.state is ModelState.READY for model in models):
            return "no model could be loaded"
        return None

    def ready_model(self, name: str, version: str = "") -> tuple[ServedModel, Session]:
        """The model to run, with its session.

        Args:
            name: as the client wrote it.
            version: empty, or a version the client insists on.

        Raises:
            NotFound: no such model or version.
            Unavailable: still loading.
            ModelLoadError: it could not be loaded; carries the reason (NOT_FOUND, as Triton answers).
        """
        model = self.known_model(name, version)
        if model.session is not None:
            return model, model.session
        if model.state is ModelState.LOADING:
            raise Unavailable(f"model '{name}' is still loading")
        raise ModelLoadError(f"model '{name}' is not available: {model.reason}")

    def known_model(self, name: str, version: str = "") -> ServedModel:
        """The model by name and version, in whatever state.

        Raises:
            NotFound: no such model, or the version is not the one served.
            InvalidArgument: the version is no positive number.
        """
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"unknown model '{name}'; RepositoryIndex lists the models that are served")
        if version and version != model.version:
            raise _version_error(model, version)
        return model


def _version_error(model: ServedModel, version: str) -> NodeError:
    if not _NUMBER.fullmatch(version) or int(version) > _MAX_VERSION:
        return InvalidArgument(
            f"model '{model.name}': version {version[:40]!r} is not a version; use {model.version!r}"
        )
    return NotFound(f"model '{model.name}': version {version!r} is not served; version {model.version!r} is")
