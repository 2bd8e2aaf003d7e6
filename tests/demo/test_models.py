"""The bundled demo models, as ONNX Runtime sees and runs them."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from reactant_node.config.schema import Backend
from reactant_node.runtime.ort import OrtRuntime

SAMPLE = Path(__file__).parents[2] / "config" / "demo" / "digit.txt"


def session(name: str) -> onnxruntime.InferenceSession:
    """A session for one bundled model, found as the installed package finds it."""
    OrtRuntime(Backend.CPU, 1)  # the process's thread pool, which other tests may have made already
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    with as_file(files("reactant_node") / "demo" / name / "model.onnx") as path:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def signature(arguments: list[onnxruntime.NodeArg]) -> dict[str, tuple[str, list[int | str]]]:
    """Name, type and shape of inputs or outputs."""
    return {argument.name: (argument.type, argument.shape) for argument in arguments}


def test_simple_has_the_signature_of_tritons_example() -> None:
    """Clients written for that example work unchanged."""
    simple = session("simple")
    row = ("tensor(int32)", ["n", 16])
    assert signature(simple.get_inputs()) == {"INPUT0": row, "INPUT1": row}
    assert signature(simple.get_outputs()) == {"OUTPUT0": row, "OUTPUT1": row}


@pytest.mark.parametrize("rows", [1, 3])
def test_simple_adds_and_subtracts(rows: int) -> None:
    """OUTPUT0 is the sum, OUTPUT1 the difference, for any number of rows."""
    first = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    second = np.full((rows, 16), 7, np.int32)
    total, difference = session("simple").run(["OUTPUT0", "OUTPUT1"], {"INPUT0": first, "INPUT1": second})
    assert np.array_equal(total, first + second)
    assert np.array_equal(difference, first - second)


def test_digits_reads_the_sample() -> None:
    """The image that the documentation sends is a three, alone and among blank pages."""
    digits = session("digits")
    assert signature(digits.get_inputs()) == {"image": ("tensor(float)", ["n", 8, 8])}
    assert signature(digits.get_outputs()) == {
        "digit": ("tensor(int64)", ["n"]),
        "probabilities": ("tensor(float)", ["n", 10]),
    }
    three = np.loadtxt(SAMPLE, dtype=np.float32)
    batch = np.stack([np.zeros_like(three), three])
    for image in (three[np.newaxis], batch):
        digit, probabilities = digits.run(["digit", "probabilities"], {"image": image})
        assert digit[-1] == 3
        assert probabilities[-1, 3] > 0.9
        assert probabilities.sum(axis=1) == pytest.approx(1)


def test_both_are_small() -> None:
    """The models add little to the one file."""
    sizes = {
        name: len((files("reactant_node") / "demo" / name / "model.onnx").read_bytes()) for name in ("simple", "digits")
    }
    assert all(0 < size < 200_000 for size in sizes.values()), sizes
