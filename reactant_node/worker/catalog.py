"""A model's life in one worker, and which models there are.

A model is LOADING until its session exists, then READY, or UNAVAILABLE with the reason. READY goes on as READY when
another session takes the place of the one that was served, and when that was tried in vain: then with the reason.
What was not asked for, or is not wanted any more, is UNLOADED. Whoever has no folder any more has no entry.

Each entry is a frozen value; a reader takes one reference and sees one generation.
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
    """KServe's repository index states, as Triton spells them, but for UNLOADED: UNAVAILABLE on the wire."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNLOADED = "UNLOADED"


_TRANSITIONS: Mapping[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset({ModelState.READY, ModelState.UNLOADED}),
    ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
    ModelState.UNLOADED: frozenset({ModelState.LOADING}),
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
        reason: why it is unavailable, or why what its folder holds now is not what is served; one line, or empty.
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
        version: str = "",
    ) -> ServedModel:
        """The same model in its next state, of the same version unless one is given.

        Raises:
            ValueError: there is no such transition; names both states.
        """
        if state not in _TRANSITIONS[self.state]:
            raise ValueError(f"model {self.name}: no transition from {self.state} to {state}")
        version = version or self.version
        return replace(self, version=version, state=state, reason=reason, session=session, batch_axis=batch_axis)

    def kept(self, reason: str) -> ServedModel:
        """A READY model whose update cannot be served, and why."""
        return self.moved_to(ModelState.READY, reason=reason, session=self.session, batch_axis=self.batch_axis)

    def renamed(self, name: str) -> ServedModel:
        """The same under another name."""
        return replace(self, name=name)


class Catalog:
    """All models of this worker. Written by the worker's loop, read by any thread through `models`.

    Args:
        on_demand: models are loaded when somebody asks for them: having none is a state to be ready in.
    """

    def __init__(self, *, on_demand: bool = False) -> None:
        self._models: Mapping[str, ServedModel] = MappingProxyType({})
        self._on_demand = on_demand
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

    def remove(self, name: str) -> None:
        """Forget a model; requests for it are NOT_FOUND from now on."""
        self._models = MappingProxyType({known: model for known, model in self._models.items() if known != name})

    @property
    def is_complete(self) -> bool:
        """The start set has been gone through."""
        return self._complete

    def complete(self) -> None:
        """The start set has been gone through: from now on readiness is a matter of what is ready."""
        self._complete = True

    def not_ready_reason(self) -> str | None:
        """Why this worker cannot serve yet, or None.

        Ready means that every model of the start set is ready or refused, and at least one is ready (WRK-3; a
        refused model never keeps the others from being served, 1.35 item 8). A model that is added later changes
        nothing about that.
        """
        models = self._models.values()
        if not self._complete:
            waiting = sum(model.state is ModelState.LOADING for model in models)
            return f"loading models, {waiting} to go"
        states = {model.state for model in models}
        if self._on_demand or ModelState.READY in states:
            return None
        if ModelState.LOADING in states:
            return "the first model is being loaded"
        return "no model could be loaded" if states else "the model repository holds no model"

    def ready_model(self, name: str, version: str = "") -> tuple[ServedModel, Session]:
        """The model to run, with its session.

        Args:
            name: as the client wrote it.
            version: empty, or a version the client insists on.

        Raises:
            NotFound: no such model or version.
            Unavailable: still loading, or unloaded.
            ModelLoadError: it could not be loaded; carries the reason (NOT_FOUND, as Triton answers).
        """
        model = self.known_model(name, version)
        if model.session is not None:
            return model, model.session
        if model.state is ModelState.LOADING:
            raise Unavailable(f"model '{name}' is still loading")
        if model.state is ModelState.UNLOADED:
            raise Unavailable(f"model '{name}' is not loaded; RepositoryModelLoad loads it")
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
