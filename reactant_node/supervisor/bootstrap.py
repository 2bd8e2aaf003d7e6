"""The first code of ours in a child: ties its life to the parent's, runs the target, ends with the code it means.

No child outlives its parent. The kernel kills it when the parent's main thread ends (PR_SET_PDEATHSIG), in the middle
of a native call if need be; a parent that died before that was asked for shows in the parent's number. The end of the
report sockets, which only the parent holds open, is the companion where a sandbox ignores the request.

Light at the top: what a child is slow to load, its target loads.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import io
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from reactant_node.errors import AddressInUse, ConfigError, ExitCode, NodeError, RuntimeUnavailable
from reactant_node.reports import Failed, Heartbeat, Report

PR_SET_PDEATHSIG = 1

_MAX_REASON_CHARACTERS = 1000

_EXIT_CODES: Mapping[type[NodeError], ExitCode] = {
    AddressInUse: ExitCode.FAILURE,
    ConfigError: ExitCode.CONFIG,
    RuntimeUnavailable: ExitCode.BOOT,
}
"""Errors whose message says it all: no traceback for these."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is told.

    Attributes:
        report_fd: its end of the report sockets.
        parent_pid: who started it.
        target: module and name of the function to run.
        args: pickled, so that what they need is loaded where a failure is told from others.
    """

    report_fd: int
    parent_pid: int
    target: tuple[str, str]
    args: bytes


def run_child(order: Order) -> NoReturn:
    """Do as ordered; the end of this is the end of the process."""
    connection = socket.socket(fileno=order.report_fd)
    _tie_to_parent(order.parent_pid, connection)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for whoever interrupts the node, the parent decides
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a crash must not take along
        sys.stdout.reconfigure(line_buffering=True)
    _end(_run_target(order, _Reporter(connection)))


def _tie_to_parent(parent_pid: int, connection: socket.socket) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(ExitCode.FAILURE)
    threading.Thread(target=_die_with, args=(connection,), name="death-watch", daemon=True).start()


def _die_with(connection: socket.socket) -> None:
    """The parent never writes: there is something to read only when its end is closed."""
    with suppress(OSError):
        connection.recv(1)
    os._exit(ExitCode.FAILURE)


def _run_target(order: Order, report: Callable[[Report], None]) -> ExitCode:
    module, name = order.target
    try:
        target = getattr(importlib.import_module(module), name)
        target(report, *pickle.loads(order.args))  # noqa: S301 - from our own parent
    except tuple(_EXIT_CODES) as error:
        _log.error("%s", error)
        return _failed(report, error, _EXIT_CODES[type(error)])
    except ImportError as error:
        _log.exception("a module cannot be loaded")
        return _failed(report, error, ExitCode.BOOT)
    except BaseException as error:  # noqa: BLE001 - the last stop: becomes an exit code and a line
        _log.exception("ended by an error")
        return _failed(report, error, ExitCode.FAILURE)
    return ExitCode.OK


def _failed(report: Callable[[Report], None], error: BaseException, code: ExitCode) -> ExitCode:
    reason = " ".join(str(error).split()) or type(error).__name__
    report(Failed(reason[:_MAX_REASON_CHARACTERS]))
    return code


def _end(code: ExitCode) -> NoReturn:
    """Exit at once: a run that cannot be interrupted must not keep the process, nor native threads crash its end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class _Reporter:
    """Sends reports from any thread of the child, each whole. A parent that is gone is the death watch's affair."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __call__(self, report: Report) -> None:
        # A parent that is stopped must not stop its workers: of the beats it does not read, it needs none.
        flags = socket.MSG_DONTWAIT if isinstance(report, Heartbeat) else 0
        with suppress(OSError):
            self._connection.send(pickle.dumps(report), flags)
