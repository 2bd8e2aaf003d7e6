"""Which tensors of a model's file declare no shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from reactant_node.models.onnx_file import unranked_names
from tests.support import models


def test_a_tensor_without_a_shape_is_told_from_a_scalar(tmp_path: Path) -> None:
    """Inputs and outputs alike; weights in between are skipped."""
    model = models.build(
        [helper.make_node("Add", ["any", "scalar"], ["y"]), helper.make_node("Identity", ["w"], ["z"])],
        [models.value("any", "FP32", None), models.value("scalar", "FP32", ()), models.value("v", "FP32", ("n", 3))],
        [models.value("y", "FP32", None), models.value("z", "FP32", (1000,))],
        [models.constant("w", np.zeros(1000, np.float32))],
    )
    assert unranked_names(models.write_model(tmp_path, model)) == {"any", "y"}


def test_a_file_that_is_cut_off_inside_its_graph_is_an_error(tmp_path: Path) -> None:
    """Wherever it ends: never a wrong answer, never an endless loop."""
    whole = models.build(
        [helper.make_node("Identity", ["x"], ["y"])], [models.value("x", "FP32", None)], [models.value("y", "FP32", ())]
    ).SerializeToString()
    graph = range(3, len(whole) - len(b"\x42\x04\x0a\x00\x10\x15"))  # behind ir_version, before opset_import
    assert len(graph) > 30
    for length in graph:
        path = models.write_model(tmp_path, whole[:length])
        with pytest.raises(ValueError, match=r"ends inside a number|longer than what holds it"):
            unranked_names(path)
