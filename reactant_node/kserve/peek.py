"""The outside of a serialized protobuf message: its top-level fields, and a ModelInferRequest's name on them.

A gateway routes a request by its model name and passes the bytes on; it has no use for the tensors. A protobuf
message is a sequence of fields, each a tag (field number and wire type) and a value whose length is known from the
wire type or written before it, so the fields of the top level can be walked by skipping over their values. Nothing
is copied but the strings asked for.

The rules are those of protobuf's own parser, so that both sides of a hop agree: of a field that comes twice the
last one wins, unknown fields are skipped, groups (obsolete, but legal) are skipped as a whole, and a tag takes at
most 5 bytes, a varint at most 10. What is inside a value is not looked at: a message that passes here may still be
refused by the full parser, never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reactant_node.errors import InvalidArgument

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)

_MAX_TAG_BYTES = 5
_MAX_VARINT_BYTES = 10
_MAX_TAG = 0xFFFFFFFF
_MAX_GROUP_DEPTH = 100
"""protobuf's own limit, so that a message of nested groups cannot be refused by one side of a hop only."""

_MODEL_NAME, _MODEL_VERSION, _ID = 1, 2, 3


Field = tuple[int, int, int, int]
"""A length-delimited field: its number, and where it begins, where its value begins, and where both end."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a ModelInferRequest says of itself before its tensors. Fields that are not set are empty."""

    model: str
    version: str
    id: str


def peek_infer(message: bytes | memoryview) -> Envelope:
    """Model name, version and request id of a serialized ModelInferRequest.

    Raises:
        InvalidArgument: the bytes are no protobuf message, or one of the three is no UTF-8.
    """
    spans = [(0, 0)] * (_ID + 1)
    for number, _, value, end in delimited_fields(message):
        if number <= _ID:
            # A value the parser would refuse is an error even where a later one replaces it.
            _text(message, value, end)
            spans[number] = (value, end)
    return Envelope(*(_text(message, *spans[number]) for number in (_MODEL_NAME, _MODEL_VERSION, _ID)))


def delimited_fields(message: bytes | memoryview) -> Iterator[Field]:
    """Walk the length-delimited fields (strings, bytes, messages) of a serialized message's top level.

    Args:
        message: one-dimensional, of bytes.

    Raises:
        InvalidArgument: the bytes are no protobuf message.
    """
    position = 0
    size = len(message)
    while position < size:
        begin = position
        tag = message[position]
        if tag & 0x87 == _LENGTH and tag >= 8:  # noqa: PLR2004 - one byte, number not 0: nearly every tag there is
            number, wire_type, value = tag >> 3, _LENGTH, position + 1
        else:
            number, wire_type, value = _tag(message, position)
        if wire_type == _LENGTH:
            length, value = _varint(message, value)
            position = value + length
            if position <= size:
                yield number, begin, value, position
        else:
            position = _skip_value(message, number, wire_type, value)
    if position > size:
        raise _malformed("a field ends after the message")


def _skip_value(message: bytes | memoryview, number: int, wire_type: int, position: int) -> int:
    """Position after a value that is not length-delimited."""
    if wire_type == _VARINT:
        return _varint(message, position)[1]
    if wire_type == _FIXED64:
        return position + 8
    if wire_type == _FIXED32:
        return position + 4
    if wire_type == _START_GROUP:
        return _skip_group(message, number, position)
    raise _malformed("a group ends that has not begun" if wire_type == _END_GROUP else f"wire type {wire_type}")


def _skip_group(message: bytes | memoryview, number: int, position: int) -> int:
    """Position after the end tag of the group whose start tag ends at `position`."""
    open_groups = [number]
    while open_groups:
        inner, wire_type, position = _tag(message, position)
        if wire_type == _START_GROUP:
            open_groups.append(inner)
            if len(open_groups) > _MAX_GROUP_DEPTH:
                raise _malformed(f"groups nested deeper than {_MAX_GROUP_DEPTH}")
        elif wire_type == _END_GROUP:
            if open_groups.pop() != inner:
                raise _malformed("a group ends with another number than it began")
        elif wire_type == _LENGTH:
            length, position = _varint(message, position)
            position += length
        else:
            position = _skip_value(message, inner, wire_type, position)
    return position


def _tag(message: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """Field number, wire type, and the position after the tag."""
    tag, position = _varint(message, position, _MAX_TAG_BYTES)
    if tag > _MAX_TAG or tag < 8:  # noqa: PLR2004 - the wire type takes three bits, and field numbers begin at 1
        raise _malformed(f"tag {tag}")
    return tag >> 3, tag & 7, position


def _varint(message: bytes | memoryview, position: int, max_bytes: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    """The value, and the position after it."""
    if position < len(message) and message[position] < 0x80:  # noqa: PLR2004 - one byte, as most are
        return message[position], position + 1
    value = shift = 0
    for index in range(position, min(position + max_bytes, len(message))):
        byte = message[index]
        if byte < 0x80:  # noqa: PLR2004 - the top bit says that more follows
            return value | byte << shift, index + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    raise _malformed("a number is cut off, or longer than the format allows")


def _text(message: bytes | memoryview, begin: int, end: int) -> str:
    try:
        return str(message[begin:end], "utf-8")
    except UnicodeDecodeError as error:
        raise _malformed("model name, version and id have to be UTF-8") from error


def _malformed(reason: str) -> InvalidArgument:
    return InvalidArgument(f"malformed protobuf message: {reason}")
