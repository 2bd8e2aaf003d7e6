"""Where the node's output goes: one stream, whole lines, never waited for.

Lines of all children and of the parent meet here. A thread writes them, so that a reader that is slow, stopped or
gone, or a full disk, holds up neither supervision nor the gateway: up to `MAX_BUFFERED_BYTES` wait, what comes beyond
is dropped, counted, and said as soon as there is room.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping

from reactant_node.telemetry.logs import formatter

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""Minutes of a busy node's log; small beside what a worker takes."""

PARENT = "supervisor"
GATEWAY = "gateway"


class Sink:
    """The output stream. `_lines` and what counts them are under `_ready`; `_descriptor` is the thread's alone.

    Args:
        descriptor: written to, and closed in the end; a duplicate of standard output, since descriptors 1 and 2 are
            lent to children while they are started.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._dropped = 0
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="log-sink", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Sink {self._buffered_bytes} bytes waiting, {self._dropped} lines dropped>"

    def write(self, line: bytes) -> None:
        """Queue a line, which ends with a newline. Never waits and never fails."""
        with self._ready:
            if self._buffered_bytes + len(line) > MAX_BUFFERED_BYTES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._buffered_bytes += len(line)
            self._ready.notify()

    def close(self, timeout_seconds: float) -> None:
        """Write what is queued, for so long at most, and end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout_seconds)

    def _main(self) -> None:
        while (block := self._next()) is not None:
            self._write(block)
        os.close(self._descriptor)

    def _next(self) -> bytes | None:
        with self._ready:
            while not self._lines:
                if self._closing:
                    return None
                self._ready.wait()
            block = b"".join(self._lines)
            if self._dropped:
                block += b"[%s] %d lines dropped: the reader of this log is too slow\n" % (
                    PARENT.encode(),
                    self._dropped,
                )
            self._lines.clear()
            self._buffered_bytes = self._dropped = 0
            return block

    def _write(self, block: bytes) -> None:
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # somebody made the shared description non-blocking
                threading.Event().wait(0.05)
            except OSError:  # the reader is gone, or the disk is full: serving matters more than its log
                return


class SinkHandler(logging.Handler):
    """Sends the parent's own records to the sink, as `supervisor`'s lines, or as `gateway`'s where they are that's."""

    def __init__(self, sink: Sink, log_format: str) -> None:
        super().__init__()
        self._sink = sink
        self._formatters: Mapping[str, logging.Formatter] = {
            source: formatter(log_format, source) for source in (PARENT, GATEWAY)
        }
        self._prefixed = log_format == "text"

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; a traceback's lines are prefixed one by one."""
        source = GATEWAY if record.name.startswith("reactant_node.gateway") else PARENT
        prefix = f"[{source}] " if self._prefixed else ""
        text = self._formatters[source].format(record)
        self._sink.write("".join(f"{prefix}{line}\n" for line in text.split("\n")).encode("utf-8", "backslashreplace"))
