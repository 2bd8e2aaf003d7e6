"""ONNX Runtime's messages become one line, and say who is to blame."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactant_node.runtime.ort_messages import blames_input, tidy

RESHAPE = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. Name:'flatten' Status"
    " Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:91 onnxruntime::ReshapeHelper"
    "::ReshapeHelper(const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&, bool) input_shape_size =="
    " requested_shape_size was false. The input tensor cannot be reshaped to the requested shape. Input shape:{2,3},"
    " requested shape:{4,4}\n"
)
MEMORY = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. Name:'' Status Message:"
    " /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal("
    "size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size 4398046511104\n"
)
GATHER = (
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node. Name:''"
    " Status Message: indices element out of data bounds, idx=7 must be within the inclusive range [-3,2]"
)
MATMUL = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. Name:'' Status Message:"
    " matmul_helper.h:59 Compute MatMul dimension mismatch"
)


PROTOBUF = "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from /srv/m.onnx failed:Protobuf parsing failed."
ESCAPES = (
    "[ONNXRuntimeError] : 1 : FAIL : External data path validation failed for initializer: w. Error: External data"
    ' path escapes model directory. External data path: "../w.bin" resolved path: "/srv/w.bin" allowed directory:'
    ' "/srv/m"'
)
LINES = {
    RESHAPE: (
        "Reshape node 'flatten': input_shape_size == requested_shape_size was false. The input tensor cannot be"
        " reshaped to the requested shape. Input shape:{2,3}, requested shape:{4,4}"
    ),
    MEMORY: "Expand node: Failed to allocate memory for requested buffer of size 4398046511104",
    GATHER: "Gather node: indices element out of data bounds, idx=7 must be within the inclusive range [-3,2]",
    MATMUL: "MatMul node: MatMul dimension mismatch",
    PROTOBUF: "Protobuf parsing failed.",
    ESCAPES: (
        "External data path validation failed for initializer: w. Error: "
        'the external data path "../w.bin" leaves the model folder'
    ),
    "no such file: /srv/m/w.bin\n\nreally": "no such file: w.bin really",
}


@pytest.mark.parametrize(("message", "line"), LINES.items())
def test_a_message_becomes_one_line_without_places_and_paths(message: str, line: str) -> None:
    """What went wrong stays, where in the C++ sources and on this machine goes."""
    assert tidy(message, Path("/srv/m")) == line


def test_a_message_has_a_limit() -> None:
    """It travels in gRPC trailers."""
    assert len(tidy("x" * 10_000)) == 1001


@pytest.mark.parametrize(
    ("kind", "message", "blamed"),
    [
        ("InvalidArgument", GATHER, True),
        ("InvalidArgument", "Depth is negative.", True),
        ("Fail", RESHAPE, True),
        ("Fail", MATMUL, True),
        ("Fail", MEMORY, False),
        ("RuntimeException", "something broke", False),
    ],
)
def test_shapes_and_indices_are_the_inputs_fault_and_nothing_else(kind: str, message: str, blamed: bool) -> None:
    """The class decides where it can, the text for the rest."""
    assert blames_input(kind, tidy(message)) is blamed
