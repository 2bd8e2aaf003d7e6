"""A KServe client that owes nothing to what it tests.

grpcio carries bytes, tritonclient's generated classes make messages of them, and the table of datatypes is written
from the protocol's own text, not from the server's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService/"
LIMIT_SECONDS = 60.0
NO_LIMIT = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

KSERVE_BY_ONNX = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
"""ONNX's element types that the protocol has a name for, and the name."""

NUMPY_BY_KSERVE = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "BF16": "<u2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""How the elements lie in raw contents. BF16 as bit patterns, since numpy has no such type; BYTES are framed."""


@dataclass(frozen=True, slots=True)
class WireTensor:
    """A tensor as it travels raw. Equality is equality of every bit, so NaN equals itself."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes

    @classmethod
    def of(cls, name: str, datatype: str, array: Any) -> WireTensor:
        """From a numpy array, or anything it can be made of; BF16 as uint16 or ml_dtypes' bfloat16."""
        array = np.asarray(array)
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        if datatype == "BYTES":
            return cls(name, datatype, array.shape, framed(map(_encoded, array.reshape(-1).tolist())))
        return cls(name, datatype, array.shape, array.astype(NUMPY_BY_KSERVE[datatype]).tobytes())

    @property
    def array(self) -> NDArray[Any]:
        """As numpy has it; BF16 as uint16, BYTES as an object array of str."""
        if self.datatype != "BYTES":
            return np.frombuffer(self.raw, NUMPY_BY_KSERVE[self.datatype]).reshape(self.shape)
        strings = np.empty(int(np.prod(self.shape)), dtype=object)
        strings[:] = [value.decode() for value in unframed(self.raw)]
        return strings.reshape(self.shape)


def framed(values: Iterable[bytes]) -> bytes:
    """BYTES elements, each after its length."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def unframed(raw: bytes) -> list[bytes]:
    """The BYTES elements of a raw entry."""
    values: list[bytes] = []
    position = 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        values.append(raw[position + 4 : position + 4 + length])
        position += 4 + length
    return values


def infer_request(model: str, *tensors: WireTensor, outputs: Sequence[str] = (), **fields: Any) -> Any:
    """A ModelInferRequest with raw contents; `fields` are set on it as given."""
    request = pb.ModelInferRequest(model_name=model, **fields)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def typed_request(model: str, *inputs: tuple[str, str, Sequence[int], dict[str, Any]]) -> Any:
    """A ModelInferRequest with typed contents: per input its name, datatype, shape and what is set in `contents`."""
    request = pb.ModelInferRequest(model_name=model)
    for name, datatype, shape, contents in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents))
    return request


def outputs_of(reply: Any) -> tuple[WireTensor, ...]:
    """The outputs of a ModelInferResponse: each one raw, none typed."""
    assert len(reply.outputs) == len(reply.raw_output_contents)
    assert not any(output.HasField("contents") for output in reply.outputs)
    pairs = zip(reply.outputs, reply.raw_output_contents, strict=True)
    return tuple(WireTensor(out.name, out.datatype, tuple(out.shape), raw) for out, raw in pairs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: gRPC's name of the code, the status text, the reply's bytes."""

    code: str
    text: str = ""
    reply: bytes = b""


class WireClient:
    """One connection, any method, messages as bytes. May be used from several threads."""

    def __init__(self, target: str) -> None:
        # A connection of its own, whoever else in this process talks to the same address.
        options = (*NO_LIMIT, ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(target, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._channel.close()

    def call(self, method: str, message: bytes = b"", **options: Any) -> Outcome:
        """Any unary call, by its full path; `options` are grpcio's (timeout, metadata, compression)."""
        invoke = self._channel.unary_unary(method, None, None)
        try:
            reply: bytes = invoke(message, **{"timeout": LIMIT_SECONDS, **options})
        except grpc.RpcError as error:
            return Outcome(error.code().name, error.details() or "")
        return Outcome("OK", reply=reply)

    def ask(self, method: str, request: Any, **options: Any) -> Outcome:
        """A method of the inference service."""
        return self.call(SERVICE + method, request.SerializeToString(), **options)

    def infer(self, request: Any, **options: Any) -> Any:
        """A ModelInferResponse; fails where there is none."""
        outcome = self.ask("ModelInfer", request, **options)
        assert outcome.code == "OK", outcome
        return pb.ModelInferResponse.FromString(outcome.reply)

    def outputs(self, model: str, *tensors: WireTensor, **fields: Any) -> tuple[WireTensor, ...]:
        """What a model answers."""
        return outputs_of(self.infer(infer_request(model, *tensors, **fields)))

    def index(self) -> dict[str, Any]:
        """The repository index's rows by model."""
        outcome = self.ask("RepositoryIndex", pb.RepositoryIndexRequest())
        assert outcome.code == "OK", outcome
        return {row.name: row for row in pb.RepositoryIndexResponse.FromString(outcome.reply).models}


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
