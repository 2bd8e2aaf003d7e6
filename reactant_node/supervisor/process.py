"""A child process, seen from the parent: how it is started, what it is born with, what it is asked.

A child is spawned: a fresh interpreter, which inherits no thread, lock or CUDA context. multiprocessing's spawn
context would do that too, but everything in which a child differs (output, environment, path) it takes from the
parent's own, which other threads are using at that moment; it blocks on half a message of a child that is stopped;
it tells a death by a pipe that a grandchild may hold open; and it keeps a process of its own. Here all of that is an
argument of the start:

- standard input is what to run: the path to import from, then the function and its arguments (`bootstrap.py`);
- standard output and error are its own log pipe, from the very first instruction: a failing import and a native
  library's complaint arrive there too;
- the environment is the parent's with the changes that its spec names;
- a pair of sockets that keep messages whole: reports come up one by one, and the end of the parent is its end;
- a process group of its own: what a terminal or a shell sends to the node's group is the parent's affair, and what
  a child has started itself ends with it.

The path is the parent's, with a checkout first where REACTANT_WORKSPACE_ROOT names one. A zipapp's code was unpacked
when the parent started, so that its children come from there, whatever has become of the file.

All starts happen on the main thread: the kernel ends a child when the thread that started it ends (`bootstrap.py`).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO

from reactant_node.errors import ExitCode
from reactant_node.reports import Report
from reactant_node.supervisor.bootstrap import Order, run_child
from reactant_node.supervisor.spec import ChildSpec

READ_BYTES = 64 * 1024
"""Read of a child's output at a time, as much as a pipe holds."""

_MAX_REPORT_BYTES = 64 * 1024

_MFD_CLOEXEC = 1

_libc = ctypes.CDLL(None, use_errno=True)

_BOOT = f"""\
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
try:
    run = pickle.load(sys.stdin.buffer)
except ImportError as error:
    print("this node's own code cannot be loaded:", error, file=sys.stderr)
    sys.exit({ExitCode.BOOT:d})
run()
"""
"""A checkout that is another version's, or an unpacked zipapp that somebody has removed, would be so again."""


class ChildProcess:
    """A started child. All methods are for the supervisor's thread, and none of them waits for the child.

    Args:
        process: just started, in its own process group.
        log_fd: non-blocking read end of its output; closed by `close`.
        reports: non-blocking end of the report sockets; closed by `close`.
    """

    def __init__(self, process: subprocess.Popen[bytes], log_fd: int, reports: socket.socket) -> None:
        self.log_fd = log_fd
        self.reports = reports
        self._process = process

    def __repr__(self) -> str:
        return f"<ChildProcess {self.pid}>"

    @property
    def pid(self) -> int:
        """Its process, and its process group."""
        return self._process.pid

    def read_log(self) -> bytes | None:
        """Some of its output; None where there is none now, empty when there never will be."""
        try:
            return os.read(self.log_fd, READ_BYTES)
        except BlockingIOError:
            return None

    def read_report(self) -> Report | None:
        """The next report; None where there is none now.

        Raises:
            EOFError: there will be no more.
        """
        try:
            message = self.reports.recv(_MAX_REPORT_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not message:
            raise EOFError
        try:
            report: Report = pickle.loads(message)  # noqa: S301 - from our own child, over an unnamed socket
        except Exception as error:  # a checkout may have words that this parent does not know
            raise EOFError from error
        return report

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it alone; a process that is gone is no error."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def exit_code(self) -> int | None:
        """The exit code, -n for signal n, or None while it runs. Reaps it, and ends what it has started."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            with suppress(ProcessLookupError, PermissionError):  # while it is a zombie, the group's number is its own
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def wait(self, timeout_seconds: float) -> None:
        """Wait for its end, so long at most, and reap it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_seconds)

    def close(self) -> None:
        """Close the pipe and the sockets."""
        os.close(self.log_fd)
        self.reports.close()


def spawn(spec: ChildSpec, *, workspace_root: str) -> ChildProcess:
    """Start a child.

    Args:
        spec: what to run.
        workspace_root: a checkout that it loads from, or empty.

    Raises:
        OSError: no process or descriptor is to be had.
    """
    with ExitStack() as ours, ExitStack() as its:
        log_reader, log_writer = os.pipe()
        ours.callback(os.close, log_reader)
        its.callback(os.close, log_writer)
        reports, child_reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.enter_context(reports)
        its.enter_context(child_reports)
        orders = its.enter_context(_file_in_memory())
        _write_orders(orders, spec, child_reports.fileno(), workspace_root)
        process = subprocess.Popen(
            [sys.executable, *_flags(), "-c", _BOOT, "reactant-node", spec.name],
            stdin=orders,
            stdout=log_writer,
            stderr=log_writer,
            env=_environment(spec),
            pass_fds=[child_reports.fileno()],
            process_group=0,
        )
        ours.pop_all()  # what is ours stays open
    os.set_blocking(log_reader, False)
    reports.setblocking(False)
    return ChildProcess(process, log_reader, reports)


def _file_in_memory() -> IO[bytes]:
    """Room for any amount, and no folder to fill up or vanish.

    Asked of the C library: many interpreters that are downloaded were built against one too old for
    `os.memfd_create`, whatever the host has.
    """
    descriptor = _libc.memfd_create(b"orders", _MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return os.fdopen(descriptor, "w+b")


def _write_orders(file: IO[bytes], spec: ChildSpec, report_fd: int, workspace_root: str) -> None:
    path = [workspace_root, *sys.path] if workspace_root else sys.path
    target = (spec.target.__module__, spec.target.__qualname__)
    order = Order(report_fd, os.getpid(), target, pickle.dumps(spec.args))
    file.write(pickle.dumps(list(path)) + pickle.dumps(partial(run_child, order)))
    file.seek(0)


def _flags() -> list[str]:
    """As isolated as the parent, and in any case without the working folder before the standard library."""
    return ["-I" if sys.flags.isolated else "-P"]


def _environment(spec: ChildSpec) -> dict[str, str]:
    changed = {**os.environ, **spec.environment}
    return {name: value for name, value in changed.items() if value is not None}


def reap_orphans(own: Collection[int]) -> None:
    """As PID 1, end the zombies of adopted processes.

    Args:
        own: processes that others wait for.
    """
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                return  # first in line; the rest is looked at when it has been handled
            os.waitpid(ended.si_pid, 0)
