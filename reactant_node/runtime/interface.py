"""What a worker knows of an inference runtime. `ort.py` is the real one, `fake.py` its double.

A `Runtime` belongs to one worker process and one device. Its sessions are run and closed by the worker's dispatch
thread and made by another, one at a time, also while one runs. Both release the interpreter while they work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from reactant_node.models.signature import ModelSignature
from reactant_node.tensors import NamedTensor


class Session(Protocol):
    """A model that can run."""

    @property
    def signature(self) -> ModelSignature:
        """Inputs and outputs as the graph declares them."""
        ...

    @property
    def provider(self) -> str:
        """The execution provider really in use, e.g. `CPUExecutionProvider`."""
        ...

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Run once.

        Args:
            inputs: one per declared input, any order, already checked against the signature.
            outputs: names wanted, in order; never empty.

        Returns:
            One tensor per wanted output, in that order, owned by the caller.

        Raises:
            InvalidArgument: the runtime blames the input (shape, index, type).
            Internal: any other failure of the run, with the runtime's message.
        """
        ...

    def close(self) -> None:
        """Release device and host memory. The session is not used again."""
        ...


class Runtime(Protocol):
    """Makes sessions on one device."""

    @property
    def platform(self) -> str:
        """`cpu` or `cuda`, as ModelMetadata reports it."""
        ...

    def load(self, model_path: Path) -> Session:
        """Create a session for an ONNX file; external data is found beside it.

        Raises:
            ModelLoadError: the model cannot be served, with the reason in one line.
            RuntimeUnavailable: the device's provider was asked for and did not come.
        """
        ...
