"""The cases of ONNX's own backend suite, as it ships them: a model, and inputs to run it on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader

from tests.support.interop_wire import WireTensor

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""Whose inputs come with the case. The suite's fifth kind, "real", has models alone: see `light_cases`."""

_LIGHT = Path(loader.DATA_DIR) / "light"


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        name: unique, and fit for a model folder.
        model: serialized.
        data_sets: for each run the inputs in the graph's order: arrays, protobuf messages, or files of such.
    """

    name: str
    model: bytes
    data_sets: tuple[Sequence[Any], ...]

    def runs(self, datatypes: dict[str, str]) -> Iterator[tuple[WireTensor, ...]]:
        """The inputs of each run.

        Args:
            datatypes: name to KServe datatype of the session's inputs, all of them tensors.
        """
        for values in self.data_sets:
            rows = zip(datatypes.items(), values, strict=True)
            yield tuple(WireTensor.of(name, datatype, _array(value)) for (name, datatype), value in rows)


def backend_cases() -> list[Case]:
    """Every case of the suite."""
    with warnings.catch_warnings():
        # Making the cases casts numbers out of range, on purpose.
        warnings.simplefilter("ignore")
        found = [_case(kind, case) for kind in KINDS for case in loader.load_model_tests(kind=kind)]
    return [*found, *light_cases()]


def light_cases() -> Iterator[Case]:
    """Well-known image classifiers with constants for weights; the suite has none but made-up inputs for them."""
    image = np.linspace(-1, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    for path in sorted(_LIGHT.glob("*.onnx")):
        yield Case(path.stem, path.read_bytes(), ([image],))


def _case(kind: str, case: Any) -> Case:
    if case.model is not None:
        data_sets = tuple(inputs for inputs, _ in case.data_sets)
        return Case(f"{kind}.{case.name}", case.model.SerializeToString(), data_sets)
    folder = Path(case.model_dir)
    runs = sorted(folder.glob("test_data_set_*"))
    return Case(f"{kind}.{case.name}", (folder / "model.onnx").read_bytes(), tuple(_input_files(run) for run in runs))


def _input_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("input_*.pb"), key=lambda path: int(path.stem.removeprefix("input_")))


def _array(value: Any) -> Any:
    if isinstance(value, Path):
        value = onnx.TensorProto.FromString(value.read_bytes())
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
