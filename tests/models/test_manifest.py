"""manifest.yaml: what is read of it, and that every other key is refused by name."""

from __future__ import annotations

import pytest

from reactant_node.errors import ModelLoadError
from reactant_node.models.declaration import Declaration, DeclaredTensor
from reactant_node.models.manifest import Manifest, parse_manifest

WHOLE = """
format_version: "2.0"
kind: model
name: another
executable: net/graph.onnx
executable_inputs:
  - {name: x, dtype: f32, shape: nchw, dims: {c: 3, h: 224, w: -1}}
  - {name: mask, dtype: bool, shape: nt}
executable_outputs:
  - {name: y, dtype: bf16, shape: nk, dims: [-1, 1000]}
  - {name: score}
batching: {compiled_batch_sizes: [1, 8]}
provenance: {repo: somewhere, dirty: false}
"""


def test_a_whole_manifest_is_read() -> None:
    """Letters become axes, n the batch axis, dims sizes; what has no effect is listed."""
    assert parse_manifest(WHOLE) == Manifest(
        Declaration(
            "manifest.yaml",
            (DeclaredTensor("x", "FP32", (None, 3, 224, None), 0), DeclaredTensor("mask", "BOOL", (None, "t"), 0)),
            (DeclaredTensor("y", "BF16", (None, 1000), 0), DeclaredTensor("score")),
        ),
        "net/graph.onnx",
        ("batching",),
    )


@pytest.mark.parametrize("text", ["", "format_version: 2", "kind: model"])
def test_everything_has_a_default(text: str) -> None:
    """An empty manifest is model.onnx, described by its graph."""
    assert parse_manifest(text) == Manifest(Declaration("manifest.yaml"), "model.onnx", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("executable_input: []", "executable_input: unknown key; use format_version"),
        ("kind: other", "kind: got 'other'; use model"),
        ("kind: meta", "hooks .* are not supported by this version"),
        ("client_inputs: []", "hooks .* are not supported by this version"),
        ("format_version: 3", "format_version: got '3'; use 2"),
        ("executable: ../x.onnx", "executable: got '../x.onnx'; use a file inside the model folder"),
        ("executable: /x.onnx", "executable: got '/x.onnx'"),
        ("executable: 3", "executable: got 3"),
        ("executable_inputs: x", "executable_inputs: got 'x'; use a list of tensors"),
        ("executable_inputs: [x]", r"executable_inputs\[0\]: got 'x'; use keys and values"),
        ("executable_inputs: [{dtype: f32}]", r"executable_inputs\[0\].name: got None"),
        ("executable_inputs: [{name: x, dtyp: f32}]", r"executable_inputs\[0\].dtyp: unknown key"),
        ("executable_inputs: [{name: x, dtype: f8_e5m2}]", r"executable_inputs\[0\].dtype: got 'f8_e5m2'; use f16"),
        ("executable_inputs: [{name: x, shape: nb}]", "mark one batch axis"),
        ("executable_inputs: [{name: x, shape: [1, 2]}]", "use one letter per axis"),
        ("executable_inputs: [{name: x, shape: nc, dims: [1]}]", "got 1 sizes; use one per letter of 'nc'"),
        ("executable_inputs: [{name: x, shape: nc, dims: {d: 1}}]", r"dims.d: unknown key; use n, c"),
        ("executable_inputs: [{name: x, shape: nc, dims: {c: -2}}]", "use sizes, or -1"),
        ("executable_inputs: [{name: x, shape: nc, dims: {c: true}}]", "use sizes, or -1"),
        ("executable_inputs: [{name: x, shape: nc, dims: [1, large]}]", "use sizes, or -1"),
        ("batching: {compiled_batch_sizes: [0]}", "batching.compiled_batch_sizes: got"),
        ("batching: {max: 3}", "batching.max: unknown key; use compiled_batch_sizes"),
        ("- 1", "manifest.yaml: got"),
        ("a: [", "manifest.yaml: while parsing"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_key(text: str, message: str) -> None:
    """One line: the file, the key path, what was found and what is accepted."""
    with pytest.raises(ModelLoadError, match=message) as raised:
        parse_manifest(text)
    assert raised.value.message.startswith("manifest.yaml: ")
    assert "\n" not in raised.value.message
