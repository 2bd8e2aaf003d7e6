"""How a log record becomes one line: text for people, or JSON for machines.

    2026-12-01T01:02:03.456Z INFO worker ready worker=worker0 models=12
    {"time": "2026-12-01T01:02:03.456Z", "source": "gateway", "level": "INFO", "message": "worker ready", …}

Fields are what a caller gives as `extra={"model": name, "request_id": id}`; every attribute that a plain record
lacks is one. Names come from the wire, so nothing in a message or a field can end a line or move a terminal's
cursor: control characters, line separators and direction overrides are shown as escapes. Only a traceback has
more lines than one, in text, and those are indented, so that none can pass for an event.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

_PLAIN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; `taskName` is only there from Python 3.12 on."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls (newline, escape), line separators, direction overrides, and halves that UTF-8 cannot write."""

_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')

_INDENT = "    "


def configure(
    log_format: str, *, source: str, handler: logging.Handler | None = None, level: int = logging.INFO
) -> None:
    """Make one handler the only one of this process's root logger.

    Args:
        log_format: `text` or `json`.
        source: who speaks: `supervisor`, `worker0`…; shown in JSON only, since the supervisor prefixes text.
        handler: where lines go; None is standard error.
        level: the least severe level that is written.

    Raises:
        ValueError: another format.
    """
    handler = handler or logging.StreamHandler()
    handler.setFormatter(formatter(log_format, source))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # A closed standard output must not answer every event with a traceback on standard error.
    logging.raiseExceptions = False


def formatter(log_format: str, source: str) -> logging.Formatter:
    """The formatter for `text` or `json`.

    Raises:
        ValueError: another format.
    """
    if log_format == "text":
        return TextFormatter()
    if log_format == "json":
        return JsonFormatter(source)
    raise ValueError(f"log format: got {log_format!r}; use text or json")


class TextFormatter(logging.Formatter):
    """`TIME LEVEL message key=value`, tracebacks indented below."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the lines of a traceback where there is one."""
        fields = "".join(f" {_escaped(key)}={_quoted(value)}" for key, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {_escaped(record.getMessage())}{fields}"
        return "\n".join([line, *(_INDENT + _escaped(text) for text in self._trace(record).split("\n") if text)])

    def _trace(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        return f"{trace}\n{record.stack_info or ''}"


class JsonFormatter(logging.Formatter):
    """One JSON object per record; `exception` holds a traceback. ASCII only, so that any reader can take it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        event = {
            "time": _time(record),
            "source": self._source,
            "level": record.levelname,
            "message": record.getMessage(),
        }
        event |= {key: value for key, value in _fields(record).items() if key not in event}
        if record.exc_info and record.exc_info[0]:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN_ATTRIBUTES}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _quoted(value: object) -> str:
    text = str(value)
    if _NEEDS_QUOTES.search(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return _escaped(text)
