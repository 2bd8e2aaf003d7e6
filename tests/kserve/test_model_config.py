"""Model configurations, as Triton's clients read them."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from reactant_node.dtypes import TABLE
from reactant_node.kserve.model_config import encode_model_config
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec
from reactant_node.scheduling.batching import BatchLimits

SIGNATURE = ModelSignature(
    inputs=(TensorSpec("x", "FP32", ("n", 3, None)), TensorSpec("s", "BYTES", ("n",))),
    outputs=(TensorSpec("y", "BF16", ("n", "length")),),
)
ALONE = BatchAxis(None, "nothing says so")


def config(signature: ModelSignature, axis: BatchAxis, limits: BatchLimits | None = None, version: str = "1") -> Any:
    """What a client gets."""
    message = encode_model_config("m", version, signature, axis, limits or BatchLimits())
    return service_pb2.ModelConfigResponse.FromString(message).config


def dims(tensors: Any) -> list[tuple[str, int, list[int]]]:
    """Name, type and extents of each tensor."""
    return [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in tensors]


def test_a_model_with_a_batch_axis_has_a_largest_batch_and_dims_without_it() -> None:
    """As Triton writes it: `max_batch_size` implies the leading axis."""
    reply = config(SIGNATURE, BatchAxis(0, "declared", max_rows=8))
    assert (reply.name, reply.platform, reply.backend) == ("m", "onnxruntime_onnx", "onnxruntime")
    assert reply.max_batch_size == 8
    assert dims(reply.input) == [
        ("x", model_config_pb2.TYPE_FP32, [3, -1]),
        ("s", model_config_pb2.TYPE_STRING, []),
    ]
    assert dims(reply.output) == [("y", model_config_pb2.TYPE_BF16, [-1])]


def test_without_a_limit_the_largest_batch_is_the_largest_number() -> None:
    """0 would say that there is no batch axis."""
    assert config(SIGNATURE, BatchAxis(0, "inferred")).max_batch_size == 2**31 - 1


@pytest.mark.parametrize("axis", [ALONE, BatchAxis(1, "declared", max_rows=4)])
def test_a_model_whose_axis_0_is_no_batch_axis_has_whole_shapes(axis: BatchAxis) -> None:
    """A batch axis elsewhere cannot be said in Triton's terms, and is left unsaid."""
    reply = config(SIGNATURE, axis, BatchLimits(coalescable=axis.axis is not None))
    assert reply.max_batch_size == 0
    assert dims(reply.input)[0][2] == [-1, 3, -1]
    assert dims(reply.output)[0][2] == [-1, -1]
    assert not reply.HasField("dynamic_batching")


def test_an_undeclared_rank_is_one_extent_of_any_size() -> None:
    """As in ModelMetadata; nothing is taken off where nothing is known."""
    unknown = ModelSignature((TensorSpec("x", "INT64", None),), (TensorSpec("y", "INT64", ()),))
    reply = config(unknown, BatchAxis(0, "declared", max_rows=2))
    assert dims(reply.input) == [("x", model_config_pb2.TYPE_INT64, [-1])]
    assert dims(config(unknown, ALONE).output) == [("y", model_config_pb2.TYPE_INT64, [])]


def test_joining_requests_is_dynamic_batching() -> None:
    """Present exactly where requests are joined, with its sizes and its delay."""
    axis = BatchAxis(0, "inferred")
    limits = BatchLimits(coalescable=True, preferred_sizes=(4, 8), max_queue_delay_ns=250_000)
    batching = config(SIGNATURE, axis, limits).dynamic_batching
    assert list(batching.preferred_batch_size) == [4, 8]
    assert batching.max_queue_delay_microseconds == 250
    assert config(SIGNATURE, axis, BatchLimits(coalescable=True)).HasField("dynamic_batching")
    assert not config(SIGNATURE, axis, BatchLimits()).HasField("dynamic_batching")


def test_the_served_version_is_the_policy() -> None:
    """One version serves, and that one is named."""
    assert list(config(SIGNATURE, ALONE, version="12").version_policy.specific.versions) == [12]


@pytest.mark.parametrize("datatype", [row.name for row in TABLE])
def test_every_datatype_has_its_name_in_tritons_terms(datatype: str) -> None:
    """BYTES is a string there; the others keep their names."""
    signature = ModelSignature((TensorSpec("x", datatype, ()),), ())
    (tensor,) = config(signature, ALONE).input
    name = model_config_pb2.DataType.Name(tensor.data_type)
    assert name == ("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")
