"""Bytes of children in, whole prefixed lines out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.supervisor.logs import LAST_LINES, MAX_LINE_BYTES, ChildLog, LineFormat, LineSplitter

TIME = "2026-12-01T01:02:03.456Z"


def split(*parts: bytes) -> list[bytes]:
    """Feed all parts; every line, the last one included."""
    splitter = LineSplitter()
    return [line for part in parts for line in splitter.feed(part)] + splitter.flush()


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ((b"one\ntwo\n",), [b"one", b"two"]),
        ((b"o", b"ne\nt", b"wo", b"\n"), [b"one", b"two"]),
        ((b"last without an end",), [b"last without an end"]),
        ((b"\n\n",), [b"", b""]),
        ((b"dos\r\nunix\n",), [b"dos", b"unix"]),
        ((b"dos\r", b"\nunix\n"), [b"dos", b"unix"]),
        ((b"10%\r20%\r", b"30%\n"), [b"10%", b"20%", b"30%"]),
        ((b"10%\r",), [b"10%"]),
        ((b"\xff\xfe\n",), [b"\xff\xfe"]),
        ((b"\x1b[31mred\x1b[0m\n",), [b"\x1b[31mred\x1b[0m"]),
        ((b"",), []),
    ],
)
def test_lines_end_at_newlines_and_carriage_returns(parts: tuple[bytes, ...], lines: list[bytes]) -> None:
    """However the bytes are cut on their way; nothing else is changed."""
    assert split(*parts) == lines


def test_a_line_comes_as_soon_as_it_is_complete() -> None:
    """Nothing is held back, but for what has no end yet."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o\n") == [b"two"]
    assert splitter.flush() == []


def test_a_long_line_is_cut_and_nothing_of_it_is_lost() -> None:
    """200 kB without a newline come out in pieces that a log driver takes whole, while they come in."""
    splitter, line = LineSplitter(), bytes(range(0x20, 0x7F)) * 2200
    early = [piece for start in range(0, len(line), 65536) for piece in splitter.feed(line[start : start + 65536])]
    assert len(early) >= len(line) // MAX_LINE_BYTES
    pieces = [*early, *splitter.feed(b"\nnext\n")]
    assert pieces[-1] == b"next"
    assert b"".join(pieces[:-1]) == line
    assert max(map(len, pieces)) == MAX_LINE_BYTES


@pytest.mark.parametrize("offset", range(4))
def test_a_cut_goes_between_characters(offset: int) -> None:
    """Each piece of a long line of UTF-8 is UTF-8."""
    line = b"x" * offset + "🙂".encode() * 10_000
    pieces = split(line + b"\n")
    assert len(pieces) > 2
    assert "".join(piece.decode() for piece in pieces) == line.decode()


def test_bytes_that_are_no_characters_are_cut_anywhere() -> None:
    """A run of continuation bytes does not keep a line from being cut."""
    assert [len(piece) for piece in split(b"\x80" * (MAX_LINE_BYTES + 1))] == [MAX_LINE_BYTES, 1]


@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"x", b"\r\n").replace(b"y", b"\n"))))
def test_how_the_bytes_are_cut_makes_no_difference(parts: list[bytes]) -> None:
    """The lines are those of the whole, and their bytes are all there."""
    whole = b"".join(parts)
    lines = split(*parts)
    assert lines == split(whole)
    assert b"".join(lines) == whole.replace(b"\r", b"").replace(b"\n", b"")
    assert not any(b"\n" in line or b"\r" in line for line in lines)


def test_text_lines_have_exactly_one_prefix() -> None:
    """`[name] `, the bytes as they came, a newline."""
    assert LineFormat("text").line("worker0", b"\xff oh\x1b[0m", TIME) == b"[worker0] \xff oh\x1b[0m\n"


def test_a_native_line_becomes_one_json_event() -> None:
    """With the time of reading, its source, and escapes for what is no UTF-8."""
    line = LineFormat("json").line("worker0", b'abort() \xff "quoted"', TIME)
    assert json.loads(line) == {
        "time": TIME,
        "level": "INFO",
        "message": 'abort() \\xff "quoted"',
        "source": "worker0",
    }
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_a_childs_own_event_keeps_its_fields() -> None:
    """Only the source is the supervisor's to say."""
    own = {"time": "t", "source": "somebody", "level": "ERROR", "message": "m", "model": "x"}
    line = LineFormat("json").line("worker1", json.dumps(own).encode(), TIME)
    assert json.loads(line) == {**own, "source": "worker1"}


@pytest.mark.parametrize(
    "line",
    [
        b'{"time": 1',
        b'{"time": 1}',
        b'{"other": 1, "message": "m"}',
        b"[1]",
        b'{"time": NaN, "message": "m"}',
        b'{"time":' + 5000 * b"[",  # deeper than a parser goes
    ],
)
def test_what_only_looks_like_an_event_is_a_message(line: bytes) -> None:
    """Half a line, or somebody else's JSON."""
    event = json.loads(LineFormat("json").line("worker0", line, TIME))
    assert (event["message"], event["level"]) == (line.decode(), "INFO")


def test_a_childs_log_passes_lines_on_and_keeps_the_last() -> None:
    """An unfinished line comes at the end; of many the newest are kept."""
    written: list[bytes] = []
    log = ChildLog("worker0", LineFormat("text"), written.append)
    log.feed(b"".join(b"%d\n" % number for number in range(100)) + b"half", TIME)
    assert written == [b"[worker0] %d\n" % number for number in range(100)]
    log.end(TIME)
    assert written[-1] == b"[worker0] half\n"
    assert log.last_lines == (*(b"%d" % number for number in range(101 - LAST_LINES, 100)), b"half")
    assert repr(log) == "<ChildLog worker0, 50 lines kept>"
