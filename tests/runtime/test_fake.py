"""The runtime's double behaves like a runtime."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from reactant_node.errors import Internal, ModelLoadError
from reactant_node.models.signature import ModelSignature, TensorSpec
from reactant_node.runtime.fake import FakeModel, FakeRuntime
from reactant_node.runtime.interface import Runtime, Session
from reactant_node.tensors import NamedTensor

LIMIT_SECONDS = 60.0
SIGNATURE = ModelSignature(
    (TensorSpec("x", "FP32", ("n",)),), (TensorSpec("y", "FP32", ("n",)), TensorSpec("k", "INT64", ()))
)
ONE = [NamedTensor("x", "FP32", np.ones(2, np.float32))]


def double(gate: threading.Event | None = None) -> FakeModel:
    """Y = 2x, k = its length."""
    return FakeModel(SIGNATURE, lambda arrays: {"y": arrays["x"] * 2, "k": np.array(len(arrays["x"]))}, gate)


def test_a_model_is_found_by_its_folder_whatever_the_layout() -> None:
    """The name nearest to the file wins."""
    runtime: Runtime = FakeRuntime({"double": double(), "models": FakeModel(SIGNATURE, dict, load_error="not me")})
    session: Session = runtime.load(Path("/models/double/3/model.onnx"))
    assert session.signature == SIGNATURE
    with pytest.raises(ModelLoadError, match="given are double, models"):
        runtime.load(Path("/elsewhere/other/model.onnx"))


def test_a_run_calls_the_body_and_answers_what_is_asked_for_in_the_declared_types() -> None:
    """In that order."""
    session = FakeRuntime({"m": double()}).load(Path("m/model.onnx"))
    outputs = session.run(ONE, ["k", "y"])
    assert [(t.name, t.datatype, t.data.dtype.str, t.data.tolist()) for t in outputs] == [
        ("k", "INT64", "<i8", 2),
        ("y", "FP32", "<f4", [2.0, 2.0]),
    ]
    assert repr(session) == "<FakeSession open, 1 runs>"


def test_a_closed_session_does_not_run() -> None:
    """A server that does so is wrong."""
    session = FakeRuntime({"m": double()}).load(Path("m/model.onnx"))
    session.close()
    with pytest.raises(Internal, match="closed"):
        session.run(ONE, ["y"])


def test_a_model_that_cannot_be_loaded_says_why() -> None:
    """As a broken file would."""
    with pytest.raises(ModelLoadError, match="no such operator"):
        FakeRuntime({"m": FakeModel(SIGNATURE, dict, load_error="no such operator")}).load(Path("m/model.onnx"))


def test_a_gate_holds_a_run_until_it_is_opened() -> None:
    """`entered` tells that it is there."""
    model = double(gate := threading.Event())
    session = FakeRuntime({"m": model}).load(Path("m/model.onnx"))
    answers: list[list[NamedTensor]] = []
    thread = threading.Thread(target=lambda: answers.append(session.run(ONE, ["y"])))
    thread.start()
    assert model.entered.wait(LIMIT_SECONDS)
    assert answers == []
    gate.set()
    thread.join(LIMIT_SECONDS)
    assert len(answers) == 1


def test_a_load_waits_at_its_gate_and_every_session_is_remembered() -> None:
    """Closed ones, too, so that a test can count those that are not."""
    gate = threading.Event()
    runtime = FakeRuntime({"m": FakeModel(SIGNATURE, dict, load_gate=gate)})
    thread = threading.Thread(target=lambda: runtime.load(Path("m/model.onnx")).close())
    thread.start()
    assert runtime.sessions == []
    gate.set()
    thread.join(LIMIT_SECONDS)
    assert [session.closed for session in runtime.sessions] == [True]
