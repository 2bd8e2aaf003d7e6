"""A model in the terms of Triton's model configuration, as far as clients ask for it.

Triton's `max_batch_size` says two things at once: that axis 0 of every input and output is the batch axis, which
`dims` then leaves out, and how many rows one request may have. Where nothing bounds these, it is the largest number
that the field can say.
"""

from __future__ import annotations

from reactant_node.kserve.metadata import wire_shape
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec
from reactant_node.scheduling.batching import BatchLimits

PLATFORM, BACKEND = "onnxruntime_onnx", "onnxruntime"
"""Triton's names for ONNX models."""

UNBOUNDED_ROWS = 2**31 - 1

NS_PER_MICROSECOND = 1_000

_OTHER_NAMES = {"BYTES": "STRING"}


def encode_model_config(
    name: str, version: str, signature: ModelSignature, batch_axis: BatchAxis, limits: BatchLimits
) -> bytes:
    """A ModelConfig reply.

    Args:
        name: the model's.
        version: the one that is served, a number.
        signature: inputs and outputs, whole shapes.
        batch_axis: where the rows are. Triton has no way to say that they are anywhere but on axis 0.
        limits: how requests are joined.
    """
    most_rows = (batch_axis.max_rows or UNBOUNDED_ROWS) if batch_axis.axis == 0 else 0
    config = pb.ModelConfig(name=name, platform=PLATFORM, backend=BACKEND, max_batch_size=most_rows)
    config.version_policy.specific.versions.append(int(version))
    for spec in signature.inputs:
        config.input.add(name=spec.name, data_type=_data_type(spec), dims=_dims(spec, batched=bool(most_rows)))
    for spec in signature.outputs:
        config.output.add(name=spec.name, data_type=_data_type(spec), dims=_dims(spec, batched=bool(most_rows)))
    if most_rows and limits.coalescable:
        config.dynamic_batching.preferred_batch_size.extend(limits.preferred_sizes)
        config.dynamic_batching.max_queue_delay_microseconds = limits.max_queue_delay_ns // NS_PER_MICROSECOND
    return pb.ModelConfigResponse(config=config).SerializeToString()


def _data_type(spec: TensorSpec) -> str:
    return f"TYPE_{_OTHER_NAMES.get(spec.datatype, spec.datatype)}"


def _dims(spec: TensorSpec, *, batched: bool) -> list[int]:
    shape = wire_shape(spec)
    return shape[1:] if batched and spec.shape is not None else shape
