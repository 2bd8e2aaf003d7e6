"""config.pbtxt: what is honoured, what has no effect, what refuses the model."""

from __future__ import annotations

import pytest

from reactant_node.errors import ModelLoadError
from reactant_node.models.declaration import Declaration, DeclaredTensor
from reactant_node.models.triton import TritonConfig, parse_config

BATCHED = """
name: "another"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output { name: "label", data_type: TYPE_STRING, dims: 1, label_filename: "labels.txt" }
version_policy: { specific: { versions: [ 1, 3 ] } }
default_model_filename: "net.onnx"
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { }
"""


def test_a_config_is_read() -> None:
    """Dims leave the batch axis out where max_batch_size is positive; fields that only tune are listed."""
    assert parse_config(BATCHED) == TritonConfig(
        Declaration(
            "config.pbtxt",
            (DeclaredTensor("x", "FP32", (None, None, 4), 0),),
            (DeclaredTensor("label", "BYTES", (None, 1), 0),),
            batched=True,
            max_rows=8,
        ),
        (1, 3),
        "net.onnx",
        ("instance_group", "dynamic_batching"),
    )


def test_max_batch_size_zero_means_no_batches_and_none_leaves_it_to_the_graph() -> None:
    """Written out it is the operator's word; left out it is not."""
    shape = 'input { name: "x" data_type: TYPE_FP32 dims: [2, 4] }'
    zero = parse_config(f"max_batch_size: 0 {shape}").declaration
    assert (zero.batched, zero.max_rows, zero.inputs) == (False, None, (DeclaredTensor("x", "FP32", (2, 4)),))
    assert parse_config(shape).declaration.batched is None
    assert parse_config("") == TritonConfig(Declaration("config.pbtxt"), (), "model.onnx", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batchsize: 8", "max_batchsize is no field of Triton's model configuration"),
        ("max_batch_size: -1", "max_batch_size: got -1; use a whole number from 0"),
        ('max_batch_size: "8"', "max_batch_size: got '8'"),
        ('platform: "tensorrt_plan"', "platform is 'tensorrt_plan'; only 'onnxruntime_onnx' is served"),
        ('backend: "python"', "backend is 'python'; only 'onnxruntime' is served"),
        ("sequence_batching { }", "sequence_batching is not supported by this version"),
        ("ensemble_scheduling { }", "ensemble_scheduling is not supported by this version"),
        ('input { name: "x" reshape { } }', "input.reshape is not supported by this version"),
        ('input { name: "x" dims: -2 }', "input.dims: got -2"),
        ('input { name: "x" data_type: FP32 }', "input.data_type: got 'FP32'; use TYPE_FP32"),
        ("input { dims: 1 }", "input has no name"),
        ('default_model_filename: "../m.onnx"', "default_model_filename is '../m.onnx'"),
        ("input {", "line 1: expected a field name"),
    ],
)
def test_what_cannot_be_honoured_refuses_the_model(text: str, message: str) -> None:
    """Serving it anyway would give other answers than the file promises."""
    with pytest.raises(ModelLoadError) as raised:
        parse_config(text)
    assert raised.value.message.startswith("config.pbtxt: ")
    assert message in raised.value.message
