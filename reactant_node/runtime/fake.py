"""The double of `ort.py`: a runtime whose models are Python functions, so that a whole node runs without ONNX Runtime.

A model's folder exists on disk as for the real one (the repository is scanned), its file is never read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.dtypes import BY_NAME
from reactant_node.errors import Internal, ModelLoadError
from reactant_node.models.signature import ModelSignature
from reactant_node.tensors import NamedTensor

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class FakeModel:
    """A model to be served.

    Attributes:
        signature: what it declares.
        body: input arrays by name → output arrays by name; what it raises leaves `run`.
        gate: every run waits until it is set; None: no run waits.
        entered: set when a run begins, before it waits at the gate.
        load_error: why it cannot be loaded; empty: it can.
        load_gate: every load waits until it is set; None: no load waits.
    """

    signature: ModelSignature
    body: Callable[[Arrays], Arrays]
    gate: threading.Event | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    load_error: str = ""
    load_gate: threading.Event | None = None


class FakeSession:
    """One loaded fake. Counts its runs; `runs` is written by the thread that runs it."""

    provider = "FakeExecutionProvider"

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._closed = False
        self.runs = 0

    def __repr__(self) -> str:
        return f"<FakeSession {'closed' if self._closed else 'open'}, {self.runs} runs>"

    @property
    def closed(self) -> bool:
        """It was let go of."""
        return self._closed

    @property
    def signature(self) -> ModelSignature:
        """As given."""
        return self._model.signature

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Call the body. Running a closed session is an error of the server, and fails loudly."""
        if self._closed:
            raise Internal("the session is closed")
        self.runs += 1
        self._model.entered.set()
        if self._model.gate is not None:
            self._model.gate.wait()
        arrays = self._model.body({tensor.name: tensor.data for tensor in inputs})
        datatypes = {spec.name: spec.datatype for spec in self.signature.outputs}
        return [NamedTensor(name, datatypes[name], _array(arrays[name], datatypes[name])) for name in outputs]

    def close(self) -> None:
        """Refuse further runs."""
        self._closed = True


class FakeRuntime:
    """Makes sessions of the models it was given, by the name of the folder that holds the file.

    `sessions` are all it has made, the closed ones too. A mapping that changes is looked into at each load.
    """

    def __init__(self, models: Mapping[str, FakeModel], platform: str = "cpu") -> None:
        self.sessions: list[FakeSession] = []
        self._models = models
        self._platform = platform

    def __repr__(self) -> str:
        return f"<FakeRuntime {self._platform}, {len(self._models)} models>"

    @property
    def platform(self) -> str:
        """As given."""
        return self._platform

    def load(self, model_path: Path) -> FakeSession:
        """A session for the model whose name is in the path, nearest to the file.

        Raises:
            ModelLoadError: no such model was given, or it has a `load_error`.
        """
        model = next((self._models[part] for part in reversed(model_path.parts) if part in self._models), None)
        if model is None:
            raise ModelLoadError(f"no fake model for {model_path}; given are {', '.join(self._models) or 'none'}")
        if model.load_gate is not None:
            model.load_gate.wait()
        if model.load_error:
            raise ModelLoadError(model.load_error)
        session = FakeSession(model)
        self.sessions.append(session)
        return session


def _array(data: NDArray[Any], datatype: str) -> NDArray[Any]:
    return np.asarray(data, dtype=BY_NAME[datatype].numpy)
