"""The load-time probe: rows together and alone have to agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from reactant_node.errors import InvalidArgument
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec, infer_batch_axis
from reactant_node.runtime.fake import Arrays, FakeModel, FakeSession
from reactant_node.runtime.ort import OrtRuntime
from reactant_node.runtime.probe import ProbeResult, probe_batch_axis
from tests.support import models

DECLARED = BatchAxis(0, "declared", declared=True)
INFERRED = BatchAxis(0, "inferred")


def probed(runtime: OrtRuntime, folder: Path, model: onnx.ModelProto) -> BatchAxis:
    """The axis of a real model: inferred, then tried out."""
    session = runtime.load(models.write_model(folder, model))
    return probe_batch_axis(session, session.signature, infer_batch_axis(session.signature)).batch_axis


def fake(body: Callable[[Arrays], Arrays], datatype: str = "FP32", width: int | str = "w") -> FakeSession:
    """X [n,width] to y [n,width]."""
    specs = tuple(TensorSpec(name, datatype, ("n", width)) for name in ("x", "y"))
    return FakeSession(FakeModel(ModelSignature(specs[:1], specs[1:]), body))


def result(session: FakeSession, batch_axis: BatchAxis) -> ProbeResult:
    """Of the probe."""
    return probe_batch_axis(session, session.signature, batch_axis)


@pytest.mark.parametrize("build", [models.add1, models.two_out, models.matmul, models.abort_if, models.simple])
def test_models_that_treat_rows_one_by_one_keep_their_axis(
    runtime: OrtRuntime, tmp_path: Path, build: Callable[[], onnx.ModelProto]
) -> None:
    """Integer inputs are zeros and ones, so that tables are not indexed past their end."""
    assert probed(runtime, tmp_path, build()).axis == 0


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "FP64", "BYTES", "BOOL", "UINT64", "INT8"])
def test_every_datatype_can_be_made_up(runtime: OrtRuntime, tmp_path: Path, datatype: str) -> None:
    """And compared."""
    assert probed(runtime, tmp_path, models.ident(datatype)).axis == 0


def test_a_model_that_normalizes_over_its_rows_is_not_joined(runtime: OrtRuntime, tmp_path: Path) -> None:
    """It looks like a batch model, and its rows change each other."""
    axis = probed(runtime, tmp_path, models.batch_norm_like())
    assert axis.axis is None
    assert axis.reason == (
        "the first dimension of every input and output is 'n', but rows are not independent: "
        "output 'y' of 2 rows together differs from that of each alone"
    )


def test_a_model_whose_output_does_not_follow_is_not_joined(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Its outputs' first axis has the same name and another extent."""
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    model = models.build([node], [models.value("x", "FP32", ("n",))], [models.value("y", "FP32", ("n",))])
    axis = probed(runtime, tmp_path, model)
    assert axis.reason.endswith("output 'y' does not follow the rows: [4] for 2 rows, [2] for one")


def test_a_model_that_wants_a_certain_extent_is_tried_with_several(runtime: OrtRuntime, tmp_path: Path) -> None:
    """A convolution refuses an image smaller than its kernel."""
    kernel = models.constant("k", np.ones((1, 1, 9, 9), np.float32))
    model = models.build(
        [helper.make_node("Conv", ["x", "k"], ["y"])],
        [models.value("x", "FP32", ("n", 1, "h", "w"))],
        [models.value("y", "FP32", ("n", 1, "a", "b"))],
        [kernel],
    )
    assert probed(runtime, tmp_path, model).axis == 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda arrays: {"y": arrays["x"][::-1]}, "output 'y' of 2 rows together differs from that of each alone"),
        (
            lambda arrays: {"y": np.repeat(arrays["x"], len(arrays["x"]), axis=1)},
            "output 'y' changes its shape with the rows: [2, 8] for 2 rows, [1, 4] for one",
        ),
        (
            lambda arrays: {"y": arrays["x"] if len(arrays["x"]) > 1 else arrays["x"] * np.nan},
            "output 'y' of 2 rows together differs",
        ),
    ],
)
def test_a_declared_axis_is_off_with_a_warning_where_the_rows_disagree(
    body: Callable[[Arrays], Arrays], problem: str
) -> None:
    """The file was wrong, and its author should hear it."""
    found = result(fake(body), DECLARED)
    assert found.batch_axis.axis is None
    assert problem in found.batch_axis.reason
    assert found.warning.startswith("batching is declared, and off: ")
    assert result(fake(body), INFERRED).warning == ""


def test_small_differences_of_floats_are_no_disagreement_and_of_integers_are() -> None:
    """Other row counts take other kernels, which sum in another order."""

    def nearly(arrays: Arrays) -> Arrays:
        return {"y": arrays["x"] * (1 + 1e-5 * len(arrays["x"]))}

    def off_by_one(arrays: Arrays) -> Arrays:
        return {"y": arrays["x"] + len(arrays["x"])}

    assert result(fake(nearly), INFERRED).batch_axis == INFERRED
    assert result(fake(nearly, "FP64"), INFERRED).batch_axis.axis is None
    assert result(fake(off_by_one, "INT32"), INFERRED).batch_axis.axis is None


def test_a_probe_that_cannot_run_leaves_a_declared_axis_and_turns_an_inferred_one_off() -> None:
    """Both say why."""

    def refuse(_: Arrays) -> Arrays:
        raise InvalidArgument("not these values")

    assert result(fake(refuse), DECLARED) == ProbeResult(
        DECLARED, "batching is on as declared, but could not be tried out: not these values"
    )
    assert result(fake(refuse), INFERRED) == ProbeResult(
        BatchAxis(None, "inferred, but it could not be tried out: not these values")
    )
    fixed = fake(refuse, width=4)
    result(fixed, INFERRED)
    assert fixed.runs == 1  # nothing else to try
    assert "more than" in result(fake(refuse, width=1 << 40), INFERRED).batch_axis.reason


def test_a_model_that_runs_two_rows_and_not_one_is_not_joined() -> None:
    """A lone request would fail."""

    def pairs_only(arrays: Arrays) -> Arrays:
        if len(arrays["x"]) != 2:
            raise InvalidArgument("two, please")
        return {"y": arrays["x"]}

    assert result(fake(pairs_only), INFERRED).batch_axis.reason.endswith("it runs 2 rows and not one: two, please")


@pytest.mark.parametrize("axis", [BatchAxis(None, "none"), BatchAxis(0, "one", declared=True, max_rows=1)])
def test_where_nothing_can_be_joined_nothing_is_run(axis: BatchAxis) -> None:
    """The probe costs a load nothing then."""
    session = fake(lambda arrays: {"y": arrays["x"]})
    assert result(session, axis) == ProbeResult(axis)
    assert session.runs == 0


def test_rows_may_lie_along_another_axis() -> None:
    """As a manifest may mark it."""
    spec = TensorSpec("x", "FP32", ("t", "n"))
    signature = ModelSignature((spec,), (TensorSpec("y", "FP32", ("t", "n")),))
    axis = BatchAxis(1, "marked", declared=True)
    along = FakeSession(FakeModel(signature, lambda arrays: {"y": arrays["x"].cumsum(0)}))
    across = FakeSession(FakeModel(signature, lambda arrays: {"y": arrays["x"].cumsum(1)}))
    assert probe_batch_axis(along, signature, axis).batch_axis == axis
    assert probe_batch_axis(across, signature, axis).batch_axis.axis is None
