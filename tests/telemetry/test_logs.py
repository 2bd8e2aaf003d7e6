"""One record, one line, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.telemetry.logs import configure, formatter

CREATED = 1_796_086_923.456


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    """A record at a fixed time."""
    made = logging.getLogger("test").makeRecord("test", logging.INFO, "file.py", 1, message, args, None, extra=extra)
    made.created = CREATED
    return made


def failed(message: str) -> logging.LogRecord:
    """A record with the traceback of an error whose text is `message`."""
    made = record("it failed")
    try:
        int(message)
    except ValueError as error:
        made.exc_info = (ValueError, ValueError(message), error.__traceback__)
    return made


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root = logging.getLogger()
    handlers, level, raise_exceptions = root.handlers[:], root.level, logging.raiseExceptions
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raise_exceptions


def test_text_has_time_level_message_and_fields() -> None:
    """`TIME LEVEL message key=value`, in UTC with milliseconds."""
    line = formatter("text", "worker0").format(record("loaded %s", "it", model="resnet", request_id="r-1"))
    assert line == "2026-12-01T01:02:03.456Z INFO loaded it model=resnet request_id=r-1"


def test_json_has_the_same_as_an_object() -> None:
    """Time, source, level, message, and each extra as a member."""
    line = formatter("json", "worker0").format(record("loaded %s", "it", model="resnet", request_id="r-1", rows=3))
    assert json.loads(line) == {
        "time": "2026-12-01T01:02:03.456Z",
        "source": "worker0",
        "level": "INFO",
        "message": "loaded it",
        "model": "resnet",
        "request_id": "r-1",
        "rows": 3,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\n2026-12-01T00:00:00.000Z ERROR forged", '"a\\n2026-12-01T00:00:00.000Z ERROR forged"'),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("naïve", "naïve"),
    ],
)
def test_a_field_of_text_is_quoted_and_escaped(value: str, shown: str) -> None:
    """A value ends where a reader thinks it ends, and moves no cursor."""
    assert formatter("text", "").format(record("m", model=value)).endswith(f" INFO m model={shown}")


@given(st.text(), st.text())
def test_no_message_or_field_makes_a_second_line(message: str, model: str) -> None:
    """Neither a message nor a value from outside can end the line, in either format, and UTF-8 can write it."""
    for log_format in ("text", "json"):
        line = formatter(log_format, "s").format(record("%s", message, model=model))
        assert len(line.splitlines()) == 1
        assert line.encode()
    assert json.loads(line)["model"] == model


def test_a_traceback_is_indented_below_its_line_in_text() -> None:
    """None of its lines begins like an event, even where the error's text tries."""
    lines = formatter("text", "").format(failed("bad\n2026-12-01T00:00:00.000Z ERROR forged")).split("\n")
    assert lines[0].endswith("INFO it failed")
    assert lines[1] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_traceback_is_a_member_in_json() -> None:
    """JSON stays one line."""
    line = formatter("json", "s").format(failed("bad"))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: bad")


def test_another_format_is_an_error() -> None:
    """The message says what is accepted."""
    with pytest.raises(ValueError, match="got 'xml'; use text or json"):
        formatter("xml", "s")


def test_configure_makes_one_handler_the_only_one(root_logger: logging.Logger) -> None:
    """After it every logger's lines go to that handler, from `info` on."""
    configure("text", source="a", handler=logging.StreamHandler(io.StringIO()))
    stream = io.StringIO()
    configure("json", source="b", handler=logging.StreamHandler(stream))
    logging.getLogger("any.module").info("hello")
    logging.getLogger("any.module").debug("hidden")
    assert json.loads(stream.getvalue())["source"] == "b"
    assert len(root_logger.handlers) == 1


@pytest.mark.usefixtures("root_logger")
def test_a_closed_stream_is_not_answered_with_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads our output may go away: logging goes on without a word."""
    stream = io.StringIO()
    configure("text", source="a", handler=logging.StreamHandler(stream))
    stream.close()
    logging.getLogger().info("nobody hears this")
    assert capsys.readouterr().err == ""
