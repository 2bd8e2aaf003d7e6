"""What ONNX Runtime does not tell of a model's file: whether a tensor declares a shape at all.

`NodeArg.shape` is `[]` for a scalar and for a tensor whose graph declares no shape, and the two accept different
requests. The file knows: ValueInfoProto.type.tensor_type.shape is there, or not. This walks the protobuf wire format
down to it and seeks over everything else, so that gigabytes of weights are not read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Field numbers of onnx.proto, which never change.
_MODEL_GRAPH = 7
_GRAPH_VALUES = (11, 12)  # input, output
_VALUE_NAME = 1
_VALUE_TYPE = 2
_TYPE_TENSOR = 1
_TENSOR_SHAPE = 2

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def unranked_names(path: Path) -> frozenset[str]:
    """Names of the graph's inputs and outputs that declare no shape.

    The file has been loaded by ONNX Runtime, so it is well-formed.

    Raises:
        ValueError: it is not, after all.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        return frozenset(
            name
            for graph_end in _messages(file, end, _MODEL_GRAPH)
            for value in _values(file, graph_end)
            for name, ranked in (_name_and_rank(value),)
            if not ranked
        )


def _values(file: BinaryIO, end: int) -> Iterator[bytes]:
    for number in _fields(file, end):
        if number[0] in _GRAPH_VALUES:
            yield file.read(number[1])


def _name_and_rank(value: bytes) -> tuple[str, bool]:
    stream = io.BytesIO(value)
    name, ranked = "", False
    for number, length in _fields(stream, len(value)):
        if number == _VALUE_NAME:
            name = stream.read(length).decode()
        elif number == _VALUE_TYPE:
            ranked = _has_shape(stream.read(length))
    return name, ranked


def _has_shape(value_type: bytes) -> bool:
    stream = io.BytesIO(value_type)
    return any(
        number == _TENSOR_SHAPE
        for end in _messages(stream, len(value_type), _TYPE_TENSOR)
        for number, _ in _fields(stream, end)
    )


def _messages(stream: BinaryIO, end: int, number: int) -> Iterator[int]:
    """Stands at the start of each sub-message with this number, and yields its end."""
    for found, length in _fields(stream, end):
        if found == number:
            yield stream.tell() + length


def _fields(stream: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """Number and length of every length-delimited field, standing at its content; goes on behind it."""
    while (start := stream.tell()) < end:
        key = _varint(stream)
        kind = key & 7
        if kind == _VARINT:
            _varint(stream)
        elif kind in (_FIXED64, _FIXED32):
            stream.seek(8 if kind == _FIXED64 else 4, os.SEEK_CUR)
        elif kind == _LENGTH:
            length = _varint(stream)
            behind = stream.tell() + length
            if behind > end:
                raise ValueError(f"the field at byte {start} is longer than what holds it")
            yield key >> 3, length
            stream.seek(behind)
        else:
            raise ValueError(f"wire type {kind} at byte {start}")


def _varint(stream: BinaryIO) -> int:
    value = 0
    for position in range(_MAX_VARINT_BYTES):
        byte = stream.read(1)
        if not byte:
            raise ValueError("the file ends inside a number")
        value |= (byte[0] & 0x7F) << (7 * position)
        if byte[0] < 0x80:  # noqa: PLR2004 - the continuation bit
            return value
    raise ValueError("a number is longer than 64 bits")
