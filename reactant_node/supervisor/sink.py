"""Where the node's output goes: one stream, whole lines, never waited for.

Lines of all children and of the parent meet here. A thread writes them, so that a reader that is slow, stopped or
gone, or a full disk, holds up neither supervision nor the gateway. Up to `MAX_BUFFERED_BYTES` wait; what comes beyond
is dropped, counted, and said as soon as there is room.

A flood is another matter: while the reader does take what is written, a child that writes faster than that is to be
slowed down, by leaving its pipe full, and nothing of it lost. `is_crowded` says when. A reader that takes less than
a chunk in `PATIENCE_SECONDS` is not waited for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping

from reactant_node.telemetry.logs import formatter

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""Minutes of a busy node's log; small beside what a worker takes."""

PARENT_BYTES = 256 * 1024
"""On top of that, for the parent's own lines: the death of a child that floods must not be lost in the flood."""

CROWDED_BYTES = MAX_BUFFERED_BYTES // 2

CHUNK_BYTES = 64 * 1024
"""Written at a time: what a pipe holds."""

PATIENCE_SECONDS = 0.25

RETRY_SECONDS = 0.05

_log = logging.getLogger(__name__)

PARENT = "supervisor"
GATEWAY = "gateway"


class Sink:
    """The output stream.

    `_lines`, `_buffered_bytes`, `_dropped` and `_closing` are under `_ready`; what has been written, and how, is the
    thread's alone, but for `_progress_at`, a single number that others read.

    Args:
        descriptor: written to, and closed in the end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._dropped = 0
        self._closing = False
        self._torn = False
        self._progress_at = 0.0
        self._thread = threading.Thread(target=self._main, name="log-sink", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Sink {self._buffered_bytes} bytes waiting, {self._dropped} lines dropped>"

    def write(self, line: bytes) -> None:
        """Queue a child's line, which ends with a newline. Never waits and never fails."""
        self._write(line, MAX_BUFFERED_BYTES)

    def write_own(self, lines: bytes) -> None:
        """Queue the parent's own line or lines, for which there is room when there is none for others."""
        self._write(lines, MAX_BUFFERED_BYTES + PARENT_BYTES)

    def is_crowded(self) -> bool:
        """Much is waiting, and the reader is at it: take no more from children for now."""
        return self._buffered_bytes > CROWDED_BYTES and time.monotonic() - self._progress_at < PATIENCE_SECONDS

    def close(self, timeout_seconds: float) -> None:
        """Write what is queued, for so long at most, and end."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout_seconds)

    def _write(self, lines: bytes, limit: int) -> None:
        with self._ready:
            if self._buffered_bytes + len(lines) > limit:
                self._dropped += lines.count(b"\n")
                return
            self._lines.append(lines)
            self._buffered_bytes += len(lines)
            self._ready.notify()

    def _main(self) -> None:
        while (block := self._next_block()) is not None:
            left = self._written_but(block)
            with self._ready:
                self._dropped += left.count(b"\n")
            if not left:
                self._tell_dropped()
        os.close(self._descriptor)

    def _next_block(self) -> bytes | None:
        """Some of what waits, in whole lines; None at the end."""
        with self._ready:
            while not self._lines:
                if self._closing:
                    return None
                self._ready.wait()
            block = bytearray()
            while self._lines and len(block) < CHUNK_BYTES:
                block += self._lines.popleft()
            self._buffered_bytes -= len(block)
            return bytes(block)

    def _written_but(self, block: bytes) -> bytes:
        """Write a block; what could not be, because the reader is gone or the disk full."""
        if self._torn and self._write_some(b"\n"):
            self._torn = False
        left = block
        while left and not self._torn and (count := self._write_some(left)):
            left = left[count:]
        self._torn = self._torn or (0 < len(left) < len(block) and block[-len(left) - 1 : -len(left)] != b"\n")
        return left

    def _write_some(self, data: bytes) -> int:
        """How many bytes were written; 0 where none can be."""
        while True:
            try:
                count = os.write(self._descriptor, data)
            except BlockingIOError:  # somebody made the shared description non-blocking
                time.sleep(RETRY_SECONDS)
            except OSError:  # serving matters more than its log
                return 0
            else:
                self._progress_at = time.monotonic()
                return count

    def _tell_dropped(self) -> None:
        """As soon as there is room again; by way of the log, which knows how a line looks."""
        with self._ready:
            dropped, self._dropped = (0, self._dropped) if self._lines else (self._dropped, 0)
        if dropped:
            _log.warning("log lines dropped: %d; the reader of the log is too slow, or its disk full", dropped)


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
        try:
            text = self._formatters[source].format(record)
        except Exception:  # noqa: BLE001 - a record that cannot be written must not end what it tells of
            self.handleError(record)
            return
        lines = "".join(f"{prefix}{line}\n" for line in text.split("\n"))
        self._sink.write_own(lines.encode("utf-8", "backslashreplace"))
