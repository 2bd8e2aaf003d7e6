"""Bytes to protobuf messages, with the blame settled."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from reactant_node.errors import NodeError

_AnyMessage = TypeVar("_AnyMessage", bound=Message)


def parse(kind: type[_AnyMessage], message: bytes, blame: type[NodeError]) -> _AnyMessage:
    """The message, or an error of the class `blame`: `InvalidArgument` for a client's, `Internal` for a peer's."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise blame(f"malformed protobuf message: these {len(message)} bytes are no {kind.__name__}") from error
