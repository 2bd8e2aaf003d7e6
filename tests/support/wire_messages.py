"""KServe messages as a client writes and reads them, by tritonclient's own protobuf classes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from reactant_node.dtypes import BY_NAME
from reactant_node.tensors import NamedTensor


def raw_bytes(tensor: NamedTensor) -> bytes:
    """The elements as they travel raw."""
    if tensor.datatype == "BYTES":
        return framed(value.encode() for value in tensor.data.reshape(-1))
    return tensor.data.astype(BY_NAME[tensor.datatype].numpy).tobytes()


def framed(values: Iterable[bytes]) -> bytes:
    """BYTES elements, each after its length."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def raw_request(*tensors: NamedTensor, model: str = "m", **fields: Any) -> Any:
    """A ModelInferRequest with raw contents; `fields` are set on it as given."""
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    for tensor in tensors:
        add_input(request, tensor.name, tensor.datatype, tensor.shape, raw_bytes(tensor))
    return request


def typed_request(*tensors: NamedTensor, model: str = "m") -> Any:
    """A ModelInferRequest with typed contents."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for tensor in tensors:
        wire = add_input(request, tensor.name, tensor.datatype, tensor.shape)
        field = BY_NAME[tensor.datatype].contents
        assert field is not None
        values = tensor.data.reshape(-1).tolist()
        getattr(wire.contents, field).extend(v.encode() if isinstance(v, str) else v for v in values)
    return request


def add_input(request: Any, name: str, datatype: str, shape: Sequence[int], raw: bytes | None = None) -> Any:
    """Add one input, with a raw entry unless `raw` is None; returns it."""
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return tensor


def read_reply(message: bytes) -> tuple[Any, list[NamedTensor]]:
    """A ModelInferResponse, and its outputs as tensors."""
    reply = service_pb2.ModelInferResponse.FromString(message)
    assert len(reply.outputs) == len(reply.raw_output_contents)
    pairs = zip(reply.outputs, reply.raw_output_contents, strict=True)
    return reply, [NamedTensor(out.name, out.datatype, _elements(out, raw)) for out, raw in pairs]


def _elements(output: Any, raw: bytes) -> NDArray[Any]:
    shape = tuple(output.shape)
    if output.datatype != "BYTES":
        return np.frombuffer(raw, BY_NAME[output.datatype].numpy).reshape(shape)
    values: list[str] = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
