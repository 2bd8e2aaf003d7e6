"""What peek_infer reads is what protobuf's parser reads."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from reactant_node.errors import InvalidArgument
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.kserve.peek import Envelope, peek_infer
from tests.support.wire_messages import add_input

WIRE_LIKE = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.sampled_from(
            [b"\x0a\x01a", b"\x12\x02\xc3\xa9", b"\x1a\x00", b"\x3a\x03abc", b"\x08\x96\x01", b"\x41" + bytes(8)]
        ),
        st.sampled_from([b"\x43", b"\x44", b"\x45" + bytes(4), b"\x8a\x00\x01b", b"\x0a\x81\x00c", b"\x80\x80\x04"]),
    ),
    max_size=8,
).map(b"".join)
"""Bytes that often are a message, or nearly: strings, scalars, groups and overlong numbers, cut and mixed."""


def parsed(message: bytes) -> Envelope | None:
    """The parser's answer; None where it refuses."""
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return None
    return Envelope(request.model_name, request.model_version, request.id)


def peeked(message: bytes | memoryview) -> Envelope | None:
    """The answer of peek_infer; None where it refuses."""
    try:
        return peek_infer(message)
    except InvalidArgument:
        return None


@given(st.text(), st.text(), st.text(), st.lists(st.binary(max_size=300), max_size=3))
def test_reads_name_version_and_id_of_any_request(model: str, version: str, request_id: str, raws: list[bytes]) -> None:
    """The three strings come out of any well-formed request, also from a memoryview."""
    request: Any = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for raw in raws:
        add_input(request, "x", "UINT8", [len(raw)], raw)
    message = request.SerializeToString()
    assert peek_infer(message) == peek_infer(memoryview(message)) == Envelope(model, version, request_id)


@given(WIRE_LIKE)
@example(b"\x0a\x01a\x0a\x01b")
@example(b"\x43" * 100 + b"\x44" * 100)
@example(b"\x43\x4c")
@example(b"\x0a\x01\xff\x0a\x01a")
def test_never_refuses_or_misreads_what_the_parser_accepts(message: bytes) -> None:
    """Where the parser accepts, the answers are equal: last field wins, unknown ones and groups are skipped."""
    expected = parsed(message)
    if expected is not None:
        assert peeked(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\x0fa",
        b"\x08",
        b"\x09\x00",
        b"\x0d\x00",
        b"\x07",
        b"\x00\x00",
        b"\x02\x00",
        b"\x43",
        b"\x44",
        b"\x43\x4c",
        b"\x43\x0a\xff\x01",
        b"\x43" * 101 + b"\x44" * 101,
        b"\x0a\x01\xff",
        b"\x12\x01\xff",
        b"\x1a\x01\xff",
        b"\x0a\x01\xff\x0a\x01a",
        b"\xff\xff\xff\xff\xff\x01\x00",
        b"\xff\xff\xff\xff\x1f\x00",
        b"\x40" + b"\xff" * 10 + b"\x01",
        b"plain text",
    ],
    ids=bytes.hex,
)
def test_malformed_is_invalid_argument(message: bytes) -> None:
    """Cut, endless or impossible fields and names that are no UTF-8 are refused, as the parser refuses them."""
    assert parsed(message) is None
    with pytest.raises(InvalidArgument, match="malformed protobuf message"):
        peek_infer(message)
