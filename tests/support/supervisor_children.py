"""What children do in tests of the supervisor. Each is a spawn target: `target(report, *args)`."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from reactant_node.errors import AddressInUse, ConfigError, RuntimeUnavailable
from reactant_node.reports import Failed, Heartbeat, Loading, Ready, Report

BEAT_SECONDS = 0.05
FOREVER_SECONDS = 600

ERRORS: dict[str, BaseException] = {
    "config": ConfigError(["a.b: got 1; use 2", "c: got 3; use 4"]),
    "boot": RuntimeUnavailable("no provider"),
    "port": AddressInUse("127.0.0.1:1 is taken"),
    "import": ImportError("no module named nothing"),
    "value": ValueError("a defect"),
    "exit": SystemExit(0),
    "long": ValueError("x" * 5000),
}

Reporter = Callable[[Report], None]


class Unloadable:
    """Pickles well, and needs what is not there to be loaded again."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _load, ("nothing",)


def _load(name: str) -> None:
    raise ImportError(f"no module named {name}")


def serve(report: Reporter, drain_seconds: float = 0.0) -> None:
    """Be ready, beat, and end some time after SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    report(Loading(1, 1))
    report(Ready(grpc_port=1, metrics_port=2))
    while not stop.wait(BEAT_SECONDS):
        report(Heartbeat())
    time.sleep(drain_seconds)


def start_slowly(report: Reporter) -> None:
    """Load for ever."""
    report(Loading(0, 1))
    time.sleep(FOREVER_SECONDS)


def ignore_sigterm(report: Reporter) -> None:
    """Be ready, and never end when asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(Ready(1, 2))
    while True:
        report(Heartbeat())
        time.sleep(BEAT_SECONDS)


def fail(_: Reporter, kind: str) -> None:
    """Raise."""
    raise ERRORS[kind]


def end(report: Reporter, *reports: str) -> None:
    """Return at once, perhaps after a word."""
    for reason in reports:
        report(Failed(reason))


def die_ready(report: Reporter, number: int) -> None:
    """Be ready, then die of a signal."""
    report(Ready(1, 2))
    os.kill(os.getpid(), number)
    time.sleep(FOREVER_SECONDS)


def send_nonsense(report: Reporter) -> None:
    """Send a message that is no report, then serve."""
    connection: socket.socket = report._connection  # type: ignore[attr-defined]
    connection.send(b"no pickle")
    serve(report)


def write(report: Reporter, file: str, descriptor: int = 1) -> None:
    """Write a file's bytes as they are, then serve."""
    data = Path(file).read_bytes()
    while data:
        data = data[os.write(descriptor, data) :]
    serve(report)


def flood(report: Reporter, lines: int) -> None:
    """Write numbered lines as fast as they go, then serve."""
    for number in range(lines):
        sys.stdout.write(f"line {number:06} {'x' * 80}\n")
    serve(report)


def flood_for_ever(report: Reporter) -> None:
    """Serve, and write all the time from another thread."""
    block = b"flood\n" * 1000

    def pour() -> None:
        while True:
            os.write(2, block)

    threading.Thread(target=pour, daemon=True).start()
    serve(report)


def abort_in_mid_sentence(_: Reporter) -> None:
    """Say something by every way there is, the last of it without a newline, and crash in native code."""
    sys.stdout.write("printed and not flushed\n")
    logging.getLogger().error("logged")
    libc = ctypes.CDLL(None)
    libc.write(2, b"native words\n", 13)
    libc.write(2, b"half a line", 11)
    libc.abort()


def close_output(report: Reporter) -> None:
    """Close standard output and error, then serve."""
    os.close(1)
    os.close(2)
    serve(report)


def leave_grandchild(_: Reporter, file: str, new_session: bool = False) -> None:
    """Start a process that keeps the log open, note its number, and die."""
    grandchild = subprocess.Popen(["/bin/sleep", str(FOREVER_SECONDS)], start_new_session=new_session)
    Path(file).write_text(str(grandchild.pid))
    os.kill(os.getpid(), signal.SIGKILL)


def orphan(report: Reporter, file: str) -> None:
    """Start a process in a session of its own whose parent ends at once, then serve."""
    command = ["/bin/sh", "-c", f"sleep 0.3 & echo $! > {file}"]
    subprocess.run(command, start_new_session=True, check=True)
    serve(report)


def be_silent(report: Reporter) -> None:
    """Be ready, and never beat."""
    report(Ready(1, 2))
    time.sleep(FOREVER_SECONDS)


def load_silently(report: Reporter) -> None:
    """Be ready, then load a model without a word."""
    report(Ready(1, 2))
    report(Heartbeat(loading=True))
    time.sleep(FOREVER_SECONDS)


def beat_a_lot(report: Reporter, file: str) -> None:
    """Beat far more often than anybody reads, note that it is done, then serve."""
    for _ in range(5000):
        report(Heartbeat())
    Path(file).touch()
    serve(report)


def run_for_ever(report: Reporter) -> None:
    """Beat properly with one run on the device that does not end."""
    report(Ready(1, 2))
    since_ns = time.monotonic_ns()
    while True:
        report(Heartbeat(busy_since_ns=since_ns))
        time.sleep(BEAT_SECONDS)


def hold_the_interpreter(report: Reporter) -> None:
    """Be ready, then stay in a native call that lets no other thread run."""
    report(Ready(1, 2))
    ctypes.PyDLL(None).sleep(FOREVER_SECONDS)


def describe(report: Reporter, file: str, *arguments: str) -> None:
    """Note what this process was born with, then serve."""
    main = sys.modules["__main__"]
    document = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "path": sys.path,
        "group": os.getpgid(0),
        "descriptors": _open_descriptors(),
        "main": getattr(main, "__file__", None),
        "stdin": sys.stdin.read(),
        "module": __file__,
    }
    Path(f"{file}.partial").write_text(json.dumps(document))
    Path(f"{file}.partial").rename(file)
    serve(report)


def _open_descriptors() -> dict[str, str]:
    """What each open descriptor is; the one that lists them is gone by then."""
    return {link.name: str(link.readlink()) for link in list(Path("/proc/self/fd").iterdir()) if link.is_symlink()}
