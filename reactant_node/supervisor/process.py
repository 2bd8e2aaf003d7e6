"""A child process: how it is started, what it is born with, what it is asked. The one user of multiprocessing.

A child is a fresh interpreter (spawn): it inherits no thread, lock or CUDA context. It is born with

- descriptors 1 and 2 on its own log pipe. The parent lends its own 1 and 2 for the moment of the start, so that the
  child's very first instruction, a failing import or a native library already write there. The parent itself writes
  to a duplicate (`sink.py`);
- its environment, set in the parent's for the same moment, so that the kernel shows it too (/proc/PID/environ);
- the parent's sys.path, with a checkout first where REACTANT_WORKSPACE_ROOT names one. A zipapp's code was unpacked
  when the parent started, so that its children come from there, whatever has become of the file;
- the write end of a report pipe, and the read end of a death pipe that only the parent can write to.

No child outlives its parent: the kernel kills it when the parent's main thread ends (PR_SET_PDEATHSIG), which works
in the middle of a native call; the end of the death pipe is the companion where that is not to be had, and covers the
moment before it was set. SIGINT goes to a terminal's whole group, and only the parent acts on it.

All starts happen on the main thread: the kernel's parent-death signal is bound to the thread that started the child.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from reactant_node.errors import AddressInUse, ConfigError, ExitCode, NodeError, RuntimeUnavailable
from reactant_node.reports import Failed, Report
from reactant_node.supervisor.spec import ChildSpec

PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Boot:
    """What a child is told before its target runs."""

    reports: Connection
    death: Connection
    parent_pid: int
    target: tuple[str, str]
    args: tuple[Any, ...]


class ChildProcess:
    """A started child, as the supervisor's loop sees it; all methods are for that thread."""

    def __init__(self, process: multiprocessing.process.BaseProcess, log_fd: int, reports: Connection) -> None:
        self.pid: int = process.pid or 0
        self.log_fd = log_fd
        """Non-blocking read end of its output."""
        self.reports = reports
        self._process = process

    def __repr__(self) -> str:
        return f"<ChildProcess {self.pid}>"

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return int(self._process.sentinel)

    def exit_code(self) -> int | None:
        """The exit code, -n for signal n, or None while it runs. Reaps it."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that is gone is no error."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        os.close(self.log_fd)
        self.reports.close()
        self._process.close()


class Spawner:
    """Starts children. Holds the death pipe's write end, whose closing by the kernel is how they learn of our end.

    Args:
        workspace_root: a checkout that children load from, or empty.
    """

    def __init__(self, workspace_root: str = "") -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workspace_root = workspace_root
        self._death_reader, self._death_writer = self._context.Pipe(duplex=False)

    def spawn(self, spec: ChildSpec) -> ChildProcess:
        """Start a child.

        Raises:
            OSError: no process, descriptor or memory is to be had.
        """
        # The tracker is a process of multiprocessing's own: started inside the loan, it would hold a child's pipe open.
        resource_tracker.ensure_running()
        log_reader, log_writer = os.pipe()
        reports, report_writer = self._context.Pipe(duplex=False)
        target = (spec.target.__module__, spec.target.__qualname__)
        boot = _Boot(report_writer, self._death_reader, os.getpid(), target, spec.args)
        process = self._context.Process(target=_child_main, args=(boot,), name=spec.name)
        try:
            with _output_to(log_writer), _environment(spec.environment), _path_first(self._workspace_root):
                process.start()
        except BaseException:
            os.close(log_reader)
            reports.close()
            raise
        finally:
            os.close(log_writer)
            report_writer.close()
        os.set_blocking(log_reader, False)
        return ChildProcess(process, log_reader, reports)

    def close(self) -> None:
        """Close the death pipe: whoever is left ends."""
        self._death_writer.close()
        self._death_reader.close()


@contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    saved = [os.dup(1), os.dup(2)]
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        yield
    finally:
        for number, before in zip((1, 2), saved, strict=True):
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    try:
        _apply(changes)
        yield
    finally:
        _apply(before)


def _apply(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _path_first(folder: str) -> Iterator[None]:
    if not folder:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _child_main(boot: _Boot) -> None:
    """Runs in the child: ties its life to the parent's, runs the target, ends with the exit code it means."""
    _tie_to_parent(boot)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    reporter = _Reporter(boot.reports)
    _end(_run_target(boot, reporter))


def _run_target(boot: _Boot, report: Callable[[Report], None]) -> ExitCode:
    module, name = boot.target
    try:
        target = getattr(importlib.import_module(module), name)
        target(report, *boot.args)
    except (ConfigError, RuntimeUnavailable, AddressInUse) as error:  # the message says it all
        _log.error("%s", error)
        return _failed(report, error, _EXIT_CODES.get(type(error), ExitCode.FAILURE))
    except ImportError as error:
        _log.exception("cannot load %s", module)
        return _failed(report, error, ExitCode.BOOT)
    except Exception as error:  # noqa: BLE001 - the last stop: becomes an exit code and a line
        _log.exception("ended by an error")
        return _failed(report, error, ExitCode.FAILURE)
    return ExitCode.OK


_EXIT_CODES: Mapping[type[NodeError], ExitCode] = {
    ConfigError: ExitCode.CONFIG,
    RuntimeUnavailable: ExitCode.BOOT,
}


def _failed(report: Callable[[Report], None], error: Exception, code: ExitCode) -> ExitCode:
    reason = " ".join(str(error).split()) or type(error).__name__
    report(Failed(reason[:1000]))
    return code


def _end(code: ExitCode) -> NoReturn:
    """Exit at once: a run that cannot be interrupted must not keep the process, nor native threads crash its end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _tie_to_parent(boot: _Boot) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != boot.parent_pid:  # it died before the line above
        os._exit(ExitCode.FAILURE)
    threading.Thread(target=_die_with, args=(boot.death,), name="death-watch", daemon=True).start()


def _die_with(death: Connection) -> None:
    """The parent never writes: the pipe becomes readable only when its last writer is gone."""
    death.poll(None)
    os._exit(ExitCode.FAILURE)


class _Reporter:
    """Sends reports from any thread of the child. A parent that is gone is the death pipe's affair."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, report: Report) -> None:
        with self._lock, suppress(OSError):
            self._connection.send(report)
