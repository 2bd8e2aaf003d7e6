"""Protobuf's text format."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2, text_format
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.models.text_proto import Symbol, TextFormatError, parse


def test_scalars_messages_lists_and_comments_are_read() -> None:
    """Every field is a list; separators are optional; both kinds of brackets hold a message."""
    text = """
        # a comment
        name: "a" 'b\\n'; count: -3, ratio: 2.5f hex: 0x10
        kind: TYPE_FP32
        dims: [ 1, -1 ] dims: 4
        inner { flag: true } inner: < flag: false >
        empty: [] none {}
    """
    assert parse(text) == {
        "name": ["ab\n"],
        "count": [-3],
        "ratio": [2.5],
        "hex": [16],
        "kind": ["TYPE_FP32"],
        "dims": [1, -1, 4],
        "inner": [{"flag": ["true"]}, {"flag": ["false"]}],
        "empty": [],
        "none": [{}],
    }


def test_words_and_strings_are_told_apart() -> None:
    """An enum value is a Symbol, a string is not."""
    fields = parse('a: ON b: "ON"')
    assert isinstance(fields["a"][0], Symbol)
    assert not isinstance(fields["b"][0], Symbol)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "line 1: expected ':' or '{', found 'the end'"),
        ("a:\n\n }", "line 3: expected a value, found '}'"),
        ("a {\n b: 1", "line 2: expected a field name, found 'the end'"),
        ("a: 1 }", "line 1: expected a field name, found '}'"),
        ("a: [1 2]", "line 1: expected ',', found '2'"),
        ("a: [1", "line 1: expected ',', found 'the end'"),
        ("[ext.a]: 1", "line 1: expected a field name, found '['"),
        ('a: "open', "unexpected character, found '\"'"),
        ("a: $", "unexpected character, found '$'"),
        ("a {" * 200, "nested too deeply"),
    ],
)
def test_what_is_not_in_the_format_is_refused_with_its_line(text: str, message: str) -> None:
    """The line and what was found there."""
    with pytest.raises(TextFormatError) as raised:
        parse(text)
    assert message in str(raised.value)


@given(st.text(st.characters(codec="ascii"), max_size=20), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5))
def test_what_protobuf_writes_is_read_back(text: str, numbers: list[int]) -> None:
    """ASCII strings with all their escapes, and lists of messages."""
    message = struct_pb2.ListValue()
    message.values.add().string_value = text
    for number in numbers:
        message.values.add().number_value = number
    fields = parse(text_format.MessageToString(message)).get("values", [])
    assert fields == [{"string_value": [text]}, *({"number_value": [float(number)]} for number in numbers)]
