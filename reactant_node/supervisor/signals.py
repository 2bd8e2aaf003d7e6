"""Signals as things to read.

The handlers do nothing: the interpreter writes each signal's number to a socket, which the supervisor's loop waits on
like on any other, so that nothing is ever decided in the middle of something else.

SIGPIPE stays ignored, as Python has it: a reader of the log that goes away is the sink's affair. A crash in native
code leaves the stacks of all threads on standard error; SIGQUIT asks for them while the node goes on.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Self

ENQUEUED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


class SignalQueue:
    """A context manager around the life of the main thread's loop; restores what was before."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup = -1

    def __repr__(self) -> str:
        return f"<SignalQueue {'installed' if self._before else 'idle'}>"

    def fileno(self) -> int:
        """Readable when a signal has come."""
        return self._reader.fileno()

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in ENQUEUED:
            self._before[number] = signal.signal(number, _nothing)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=2)  # `sys.stderr` is None where the node was started without one
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def take(self) -> list[signal.Signals]:
        """The signals that have come, in order."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


def _nothing(_: int, __: object) -> None:
    """The number is in the socket already."""


def describe_threads() -> list[str]:
    """Where every thread is, for whoever wonders what a silent node is doing: one line for each frame."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, whatever its name says
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [line for entry in traceback.format_stack(frame) for line in entry.splitlines()]
    return lines
