"""YAML files become plain mappings, or one line that says what and where."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from reactant_node.config.documents import MAX_FILE_BYTES, parse_document, read_document, render_document
from reactant_node.errors import ConfigError

BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got an empty file; use a mapping"),
        ("# nothing\n", "got an empty file"),
        ("- a\n", "got a list; use a mapping"),
        ("5", "got a int"),
        ("a: 1\nb: [\n", ":3:1: "),
        ("a: 1\n\tb: 2\n", ":2:1: found character '\\t' that cannot start any token"),
        ("a: 1\nb: {c: 1, c: 2}\n", ":2:11: the key 'c' is there twice"),
        ("a: 1\na: 1\n", ":2:1: the key 'a' is there twice"),
        ("a: !!python/object/apply:os.system [ls]", ":1:4: tags are not accepted; delete !!python/object/apply"),
        ("a: !!bool maybe", ":1:4: tags are not accepted; delete !!bool"),
        ("a: !!timestamp never", ":1:4: tags are not accepted"),
        ("a: !x {b: 1}", ":1:4: tags are not accepted; delete !x"),
        ("a: &x 1\nb: *x\n", ":2:4: aliases are not accepted"),
        (BOMB, "aliases are not accepted"),
        ("a: {<<: {b: 1}}", ":1:5: the merge key << is not accepted"),
        ("a: " + "[" * 1000, "nested far deeper than a node file is"),
        ("a: " + "{b: " * 1000, "nested far deeper than a node file is"),
        ("? [a]\n: 1", ":1:3: found unhashable key"),
        ("a: 1\n---\nb: 2\n", ":2:1: but found another document"),
        (b"a: \xff\xfe", "not YAML: "),
        (b"\x7fELF\x00\x01", "not YAML: "),
        ("a: \x00", "not YAML: "),
    ],
)
def test_what_is_no_mapping_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    """Each in one line, with the file's name; nothing is run, and nothing grows."""
    with pytest.raises(ConfigError) as raised:
        parse_document(text, "node.yaml")
    message = str(raised.value)
    assert message.startswith("node.yaml:")
    assert said in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400


@pytest.mark.parametrize(
    "word",
    ["0600", "010000", "2:15", "1_000", "0x1F", "0b11", "2026-01-01", "9" * 5000, "0x" + "f" * 5000, "1.5.0", "=", "y"],
)
def test_what_yaml_1_1_would_make_a_number_or_a_date_is_the_text_that_stands_there(word: str) -> None:
    """A port of 010000 would be 4096 and 2:15 would be 135; as texts they are refused in the operator's own words."""
    assert parse_document(f"a: {word}", "node.yaml") == {"a": word}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("yes", True),
        ("Off", False),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.5E-2", 0.015),
        ("-.inf", -math.inf),
        ("'7'", "7"),
    ],
)
def test_plain_words_have_their_usual_meaning(word: str, value: object) -> None:
    """Null, booleans, decimal numbers; in quotes everything is a text."""
    assert parse_document(f"a: {word}", "node.yaml") == {"a": value}


printable = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]))  # all that a setting may hold


@given(
    st.dictionaries(
        printable.filter(lambda key: key != "<<"),
        printable | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.booleans() | st.none(),
    )
)
@example({"a": "1e3", "b": "0600", "c": "no", "d": "2:15", "e": "", "f": "1_0", "g": "2026-01-01"})
def test_what_is_rendered_reads_back_the_same(document: dict[str, object]) -> None:
    """By us, and by a reader of YAML 1.1: a text that looks like something else is quoted."""
    text = render_document({"document": document})
    assert parse_document(text, "node.yaml") == {"document": document}
    assert yaml.safe_load(text) == {"document": document}


def test_anchors_alone_do_no_harm() -> None:
    """They only name a value."""
    assert parse_document("a: &x 1", "node.yaml") == {"a": 1}


def test_a_byte_order_mark_and_crlf_are_read_over(tmp_path: Path) -> None:
    """As editors elsewhere write them."""
    path = tmp_path / "node.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert read_document(path) == {"a": 1, "b": "x"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a folder, below a file, a loop of links, far too large."""
    large, loop = tmp_path / "large", tmp_path / "loop"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    loop.symlink_to(loop)
    for path, said in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "Is a directory"),
        (large / "below", "Not a directory"),
        (loop, "Too many levels"),
        (large, "larger than"),
    ):
        with pytest.raises(ConfigError) as raised:
            read_document(path)
        assert str(raised.value).startswith(f"{path}: ")
        assert said in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    """The reason is the system's."""
    path = tmp_path / "node.yaml"
    path.touch(mode=0o000)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_document(path)
