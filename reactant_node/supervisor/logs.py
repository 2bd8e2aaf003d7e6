"""Bytes of a child's output in, whole prefixed lines out. Pure.

A child writes what it likes: Python's logging, a native library's complaint, a progress bar, a crash report cut
short. Each line that leaves here belongs to one child, starts with its name and ends with a newline, whatever came
in; bytes that are not UTF-8 are kept as they are in text, and shown as escapes in JSON.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable

MAX_LINE_BYTES = 16 * 1024 - 128
"""A longer line is cut into several, each prefixed: container log drivers cut at 16 KiB themselves, the prefix
included, and a child that writes without ever ending a line must not grow the parent's memory."""

LAST_LINES = 50
"""Kept of each child's output for the record of its death."""

_MAX_CHARACTER_BYTES = 4

_BREAK = re.compile(rb"\r\n|\n|\r")
"""A carriage return alone ends a line too: a progress bar is then a line per step and never overwrites a prefix."""


class LineSplitter:
    """Cuts one child's output into lines. Owned by whoever reads the child's pipe."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, without their ends."""
        data = self._rest + data
        # A carriage return at the very end may be the first half of a line end.
        held = data[-1:] if data.endswith(b"\r") else b""
        *lines, rest = _BREAK.split(data[: len(data) - len(held)])
        *pieces, rest = [*(piece for line in lines for piece in _cut(line)), *_cut(rest)]
        self._rest = rest + held
        return pieces

    def flush(self) -> list[bytes]:
        """What is left when the output ends: a last line without a newline."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return [rest] if rest else []


def _cut(line: bytes) -> list[bytes]:
    """One line, or several no longer than `MAX_LINE_BYTES`."""
    pieces = []
    while len(line) > MAX_LINE_BYTES:
        end = _character_start(line, MAX_LINE_BYTES)
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def _character_start(line: bytes, end: int) -> int:
    """Where the UTF-8 character begins that goes over `end`; `end` itself where these bytes are none."""
    for start in range(end, end - _MAX_CHARACTER_BYTES, -1):
        if line[start] & 0xC0 != 0x80:  # noqa: PLR2004 - 10xxxxxx continues a character
            return start
    return end


class ChildLog:
    """What one process writes: passed on line by line, the last lines kept for the record of its death.

    Args:
        name: the child's.
        line_format: how lines are written.
        write: takes each line.
    """

    def __init__(self, name: str, line_format: LineFormat, write: Callable[[bytes], None]) -> None:
        self._name, self._format, self._write = name, line_format, write
        self._splitter = LineSplitter()
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)

    def __repr__(self) -> str:
        return f"<ChildLog {self._name}, {len(self._last)} lines kept>"

    @property
    def last_lines(self) -> tuple[bytes, ...]:
        """The newest lines, without prefixes."""
        return tuple(self._last)

    def feed(self, data: bytes, time: str) -> None:
        """Pass on what these bytes complete. `time` is the moment of reading, for lines that carry none."""
        self._pass_on(self._splitter.feed(data), time)

    def end(self, time: str) -> None:
        """Pass on what is left."""
        self._pass_on(self._splitter.flush(), time)

    def _pass_on(self, lines: list[bytes], time: str) -> None:
        self._last.extend(lines)
        for line in lines:
            self._write(self._format.line(self._name, line, time))


class LineFormat:
    """How a line of a child's output is written: `[name] line`, or one JSON object.

    Args:
        log_format: `text` or `json`.
    """

    def __init__(self, log_format: str) -> None:
        self._json = log_format == "json"

    def line(self, name: str, line: bytes, time: str) -> bytes:
        """One line with its end. `time` is the moment of reading, for lines that carry none themselves."""
        if not self._json:
            return b"[%s] %s\n" % (name.encode(), line)
        event = _own_event(line) or {"time": time, "level": "INFO", "message": line.decode("utf-8", "backslashreplace")}
        return json.dumps({**event, "source": name}).encode() + b"\n"


def _own_event(line: bytes) -> dict[str, object] | None:
    """The child's own JSON log line, or None where it is a native one."""
    if not line.startswith(b'{"time":'):
        return None
    try:
        event = json.loads(line, parse_constant=int)  # NaN is no JSON, and no integer
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and "message" in event else None
