"""The elements of one tensor: between a numpy array and the two forms they take on the wire.

Raw is the array's memory, little-endian and row-major; a BYTES element is preceded by its length in 4 bytes. Typed
is a repeated protobuf field, one per family of datatypes (`dtypes.DataType.contents`).

A request is hostile until checked: its shape may be negative, overflow 64 bits or exceed what numpy can hold, its
byte lengths may claim gigabytes that are not there. So extents and their product are checked first, then the
payload's size against them, and only then is anything allocated; nothing is ever allocated by a claim alone.

Errors here are sentences about one tensor; `codec.py` puts the model's and the tensor's name before them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.dtypes import BY_NAME, DataType
from reactant_node.errors import Internal, InvalidArgument
from reactant_node.kserve.pb.grpc_predict_v2_pb2 import InferTensorContents
from reactant_node.tensors import NamedTensor

_MAX_RANK = 64
"""numpy's limit (NPY_MAXDIMS) since 2.0."""

_MAX_BYTES = 2**63 - 1
"""Of a tensor with its zero extents counted as ones: numpy's and protobuf's integers are 64-bit and signed."""

_ALIGNMENT_BYTES = 16
"""What malloc grants, so any array of numpy's own has it. Vectorized sums begin at such an address and add what lies
before it one by one: without it the last bits of a result would depend on where in its message a tensor lies, that
is on the length of the request's id."""

_LENGTH = struct.Struct("<I")


def datatype_named(name: str) -> DataType:
    """The row of a datatype as the client wrote it.

    Raises:
        InvalidArgument: there is none.
    """
    try:
        return BY_NAME[name]
    except KeyError:
        raise InvalidArgument(f"datatype {name!r} is unknown; use one of {', '.join(BY_NAME)}") from None


def from_raw(raw: memoryview, datatype: DataType, shape: Sequence[int]) -> NDArray[Any]:
    """The array for one entry of raw_input_contents.

    Args:
        raw: the entry; one-dimensional, of bytes.
        datatype: decides the element size.
        shape: extents from the wire, unchecked.

    Returns:
        A read-only view of `raw` where its address is one that an array of its own might have, else a copy.

    Raises:
        InvalidArgument: the shape is not possible, or `raw` does not hold exactly its elements.
    """
    count = _element_count(datatype, shape)
    if datatype.name == "BYTES":
        return _object_array(_framed_strings(raw, count), shape)
    if len(raw) != count * datatype.size:
        raise InvalidArgument(
            f"got {len(raw)} raw bytes; shape {list(shape)} of {datatype.name} takes {count * datatype.size}"
        )
    if datatype.name == "BOOL" and (np.frombuffer(raw, np.uint8) > 1).any():
        raise InvalidArgument("a BOOL byte is neither 0 nor 1")
    array: NDArray[Any] = np.ndarray(tuple(shape), datatype.numpy, buffer=raw)
    return array if array.__array_interface__["data"][0] % _ALIGNMENT_BYTES == 0 else array.copy()


def from_typed(contents: InferTensorContents, datatype: DataType, shape: Sequence[int]) -> NDArray[Any]:
    """The array for an input's typed contents.

    Raises:
        InvalidArgument: the shape is not possible, the elements are in another datatype's field, are not as many as
            the shape says, or do not fit the datatype.
    """
    count = _element_count(datatype, shape)
    values = _typed_values(contents, datatype)
    if len(values) != count:
        raise InvalidArgument(f"got {len(values)} typed elements; shape {list(shape)} takes {count}")
    if datatype.name == "BYTES":
        return _object_array([_text(value, index) for index, value in enumerate(values)], shape)
    return _narrowed(values, datatype).reshape(tuple(shape))


def raw_pieces(tensor: NamedTensor) -> list[bytes | memoryview]:
    """The raw form of an output, in pieces to be sent one after the other. A contiguous array is not copied.

    Raises:
        Internal: a string of a BYTES tensor cannot be written as UTF-8.
    """
    if tensor.datatype == "BYTES":
        return _string_pieces(tensor.data)
    contiguous = np.ascontiguousarray(tensor.data, dtype=BY_NAME[tensor.datatype].numpy)
    # By way of uint8, since a memoryview with a zero extent cannot be cast.
    return [contiguous.reshape(-1).view(np.uint8).data]


def _element_count(datatype: DataType, shape: Sequence[int]) -> int:
    """How many elements a shape has, once it is known to be one.

    Zero extents count as one in the size check: numpy too refuses an empty array whose other extents overflow.
    """
    if len(shape) > _MAX_RANK:
        raise InvalidArgument(f"a shape of {len(shape)} dimensions; at most {_MAX_RANK} are possible")
    count = 1
    size_bytes = np.dtype(datatype.numpy).itemsize
    for extent in shape:
        if extent < 0:
            raise InvalidArgument(f"shape {list(shape)} has a negative extent; a request needs each one given")
        count *= extent
        size_bytes *= max(extent, 1)
    if size_bytes > _MAX_BYTES:
        raise InvalidArgument(f"shape {list(shape)} overflows: no tensor can have that many elements")
    return count


def _framed_strings(raw: memoryview, count: int) -> list[str]:
    """`count` strings, each after its length, that fill `raw` exactly."""
    if len(raw) < count * _LENGTH.size:
        raise InvalidArgument(
            f"got {len(raw)} raw bytes; {count} BYTES elements take {_LENGTH.size} each for their length alone"
        )
    strings: list[str] = []
    position = 0
    for index in range(count):
        begin = position + _LENGTH.size
        if begin > len(raw):
            raise InvalidArgument(f"BYTES element {index} of {count}: the data ends before its length")
        (length,) = _LENGTH.unpack_from(raw, position)
        position = begin + length
        if position > len(raw):
            raise InvalidArgument(
                f"BYTES element {index} of {count}: its length says {length} bytes, {len(raw) - begin} are left"
            )
        strings.append(_text(raw[begin:position], index))
    if position != len(raw):
        raise InvalidArgument(f"{len(raw) - position} raw bytes are left over after the last of {count} BYTES elements")
    return strings


def _text(value: bytes | memoryview, index: int) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"BYTES element {index} is no UTF-8, which ONNX strings have to be: {error}") from error


def _object_array(strings: list[str], shape: Sequence[int]) -> NDArray[Any]:
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    return array.reshape(tuple(shape))


def _typed_values(contents: InferTensorContents, datatype: DataType) -> Sequence[Any]:
    """The repeated field of a datatype, once all others are known to be empty."""
    for field, _ in contents.ListFields():
        if datatype.contents is None:
            raise InvalidArgument(f"{datatype.name} has no typed form; send it in raw_input_contents")
        if field.name != datatype.contents:
            raise InvalidArgument(f"typed elements in {field.name}; {datatype.name} takes {datatype.contents}")
    values: Sequence[Any] = getattr(contents, datatype.contents) if datatype.contents else ()
    return values


def _narrowed(values: Iterable[Any], datatype: DataType) -> NDArray[Any]:
    """Typed elements as an array; 8- and 16-bit integers travel as 32-bit ones and have to fit."""
    target = np.dtype(datatype.numpy)
    if target.kind not in "iu" or target.itemsize >= 4:  # noqa: PLR2004 - the narrowest integers protobuf has
        return np.fromiter(values, target)
    wide = np.fromiter(values, np.int64)
    limits = np.iinfo(target)
    misfits = wide[(wide < limits.min) | (wide > limits.max)]
    if misfits.size:
        raise InvalidArgument(f"{misfits[0]} is no {datatype.name}; use {limits.min} to {limits.max}")
    return wide.astype(target)


def _string_pieces(data: NDArray[Any]) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    try:
        for value in data.reshape(-1).tolist():
            encoded = value.encode("utf-8")
            pieces += (_LENGTH.pack(len(encoded)), encoded)
    except UnicodeEncodeError as error:
        raise Internal(f"a string of the result is no UTF-8: {error}") from error
    return pieces
