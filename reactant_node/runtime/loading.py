"""From a model folder to a session that is served: load, hold against what is declared, probe the batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reactant_node.models.declaration import bind
from reactant_node.models.inspection import Examination
from reactant_node.models.repository import ModelFolder
from reactant_node.models.signature import BatchAxis, ModelSignature
from reactant_node.runtime.interface import Runtime, Session
from reactant_node.runtime.probe import probe_batch_axis
from reactant_node.tensors import NamedTensor


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to serve.

    Attributes:
        session: its signature is the one that is served.
        batch_axis: after the probe.
        warnings: what an operator should know, one sentence each.
    """

    session: Session
    batch_axis: BatchAxis
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedModel:
    """A model that has a session and has yet to run.

    Attributes:
        folder: where it is from.
        session: its signature is the one that is served.
        batch_axis: as declared or inferred.
    """

    folder: ModelFolder
    session: Session
    batch_axis: BatchAxis


class BoundSession:
    """A session whose signature is narrowed by what the model's folder declares."""

    def __init__(self, session: Session, signature: ModelSignature) -> None:
        self._session = session
        self._signature = signature

    def __repr__(self) -> str:
        return f"<BoundSession of {self._session!r}>"

    @property
    def signature(self) -> ModelSignature:
        """As it is served."""
        return self._signature

    @property
    def provider(self) -> str:
        """The session's."""
        return self._session.provider

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """The session's run."""
        return self._session.run(inputs, outputs)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def load_model(runtime: Runtime, folder: ModelFolder) -> LoadedModel:
    """Load one model of a repository: `prepare_model`, and `probe_model` at once.

    Raises:
        ModelLoadError: it cannot be served, or contradicts what its folder declares.
        RuntimeUnavailable: the device is gone.
    """
    return probe_model(prepare_model(runtime, folder))


def prepare_model(runtime: Runtime, folder: ModelFolder) -> PreparedModel:
    """Make a model's session. Nothing runs, so the device may be somebody else's.

    Raises:
        ModelLoadError: as `load_model`.
        RuntimeUnavailable: as `load_model`.
    """
    session = runtime.load(folder.path)
    try:
        binding = bind(folder.declaration, session.signature)
    except BaseException:
        session.close()
        raise
    served = session if folder.declaration is None else BoundSession(session, binding.signature)
    return PreparedModel(folder, served, binding.batch_axis)


def probe_model(prepared: PreparedModel) -> LoadedModel:
    """Run a prepared model a few times to prove its batch axis. Closes the session where that fails altogether."""
    session = prepared.session
    try:
        probed = probe_batch_axis(session, session.signature, prepared.batch_axis)
    except BaseException:
        session.close()
        raise
    return LoadedModel(session, probed.batch_axis, (*prepared.folder.warnings, *filter(None, [probed.warning])))


def examine_model(runtime: Runtime, folder: ModelFolder) -> Examination:
    """Load a model, describe it, let go of it: what `inspect` needs.

    Raises:
        ModelLoadError: as `load_model`.
        RuntimeUnavailable: as `load_model`.
    """
    loaded = load_model(runtime, folder)
    try:
        session = loaded.session
        return Examination(session.signature, loaded.batch_axis, session.provider, loaded.warnings)
    finally:
        loaded.session.close()
