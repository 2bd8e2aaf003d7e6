"""A whole node as a process: the built zipapp, real signals, real ports.

`start_node` runs `dist/reactant-node.pyz serve` with free ports, collects its output line by line and knows what
it listens on from its own log. Everything waited for is a condition with a limit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ZIPAPP = ROOT / "dist" / "reactant-node.pyz"
SHIV_ROOT = ROOT / "build" / "test-shiv-root"
"""All tests unpack into one folder: once per build."""

LIMIT_SECONDS = 60.0
"""Generous: two cores may carry several nodes at once."""

_LISTENING = r"^\[%s\] .*listening: gRPC \S*:(\d+), metrics \S*:(\d+)"


def wait_until(condition: Callable[[], bool], what: str, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Return once the condition holds; fail naming what did not come."""
    end = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < end, f"not within {limit_seconds} s: {what}"
        time.sleep(0.02)


def child_pids(pid: int) -> list[int]:
    """Direct children of a process, by the kernel."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """A process that runs: neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class NodeProcess:
    """A started node. The reader thread owns `_lines`; others read it whole."""

    def __init__(self, process: subprocess.Popen[bytes], runtime_dir: Path) -> None:
        self.process = process
        self.runtime_dir = runtime_dir
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return (
            f"<NodeProcess {self.process.pid} {'running' if self.process.poll() is None else self.process.returncode}>"
        )

    @property
    def pid(self) -> int:
        """The parent's."""
        return self.process.pid

    @property
    def lines(self) -> list[str]:
        """Output so far, stdout and stderr together."""
        return list(self._lines)

    @property
    def output(self) -> str:
        """The same as text."""
        return "\n".join(self._lines)

    @property
    def grpc_target(self) -> str:
        """`127.0.0.1:port` of the public gRPC port."""
        return f"127.0.0.1:{self._ports()[0]}"

    @property
    def metrics_url(self) -> str:
        """`http://127.0.0.1:port` of the public admin port."""
        return f"http://127.0.0.1:{self._ports()[1]}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an admin page; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(self.metrics_url + path, timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ready(self) -> bool:
        """/readyz answers 200."""
        return self.listening() and self.get("/readyz")[0] == 200

    def listening(self) -> bool:
        """The public ports are known."""
        return bool(self._found_ports())

    def wait_ready(self, limit_seconds: float = LIMIT_SECONDS) -> NodeProcess:
        """Return once /readyz answers 200; fail with the output otherwise."""
        self.wait_for(self.ready, "/readyz 200", limit_seconds)
        return self

    def wait_for(self, condition: Callable[[], bool], what: str, limit_seconds: float = LIMIT_SECONDS) -> None:
        """Wait for a condition, not longer than the node lives."""
        end = time.monotonic() + limit_seconds
        while not condition():
            assert self.process.poll() is None, (
                f"the node ended ({self.process.returncode}) before {what}:\n{self.output}"
            )
            assert time.monotonic() < end, f"not within {limit_seconds} s: {what}\n{self.output}"
            time.sleep(0.05)

    def wait_line(self, pattern: str, limit_seconds: float = LIMIT_SECONDS) -> re.Match[str]:
        """The first output line that matches."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found.extend(match for line in self.lines if (match := re.search(pattern, line)))
            return bool(found)

        self.wait_for(look, f"a line like {pattern!r}", limit_seconds)
        return found[0]

    def worker_pid(self, name: str = "worker0") -> int:
        """The pid of the child that was started last under this name, from the log."""
        starts = re.findall(rf"started {name}\b.*?pid=(\d+)", self.output)
        assert starts, self.output
        return int(starts[-1])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the parent."""
        self.process.send_signal(number)

    def wait_exit(self, limit_seconds: float = LIMIT_SECONDS) -> int:
        """The exit code; fails with the output where it does not come."""
        try:
            code = self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not exit within {limit_seconds} s:\n{self.output}") from None
        self._reader.join(LIMIT_SECONDS)
        return code

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def _ports(self) -> tuple[int, int]:
        found = self._found_ports()
        assert found, f"the node does not listen yet:\n{self.output}"
        return int(found[-1][0]), int(found[-1][1])

    def _found_ports(self) -> list[tuple[str, str]]:
        """What the gateway listens on, or the sole worker where the node has no gateway."""
        public = "gateway" if re.search(r"children=.*gateway", self.output) else "worker0"
        return re.findall(_LISTENING % public, self.output, re.MULTILINE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.append(line.decode("utf-8", "backslashreplace").rstrip("\n"))


@contextmanager
def start_node(
    tmp_path: Path,
    *arguments: str,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    ports: bool = True,
) -> Iterator[NodeProcess]:
    """Run `serve` in a session of its own, and end it by SIGKILL, children included, where the test has not.

    Args:
        tmp_path: its runtime folder is made in here.
        arguments: appended to `serve`.
        command: what runs instead of this Python and the built zipapp.
        environment: set (value) or removed (None) on top of the test's.
        cwd: working directory.
        ports: ask for free ports.
    """
    tmp_path.mkdir(parents=True, exist_ok=True)
    runtime_dir = tmp_path / "run"
    env = {**os.environ, "SHIV_ROOT": str(SHIV_ROOT), "REACTANT_RUNTIME_DIR": str(runtime_dir)}
    for name, value in (environment or {}).items():
        env.pop(name, None) if value is None else env.__setitem__(name, value)
    free = ("--grpc-port", "0", "--metrics-port", "0", "--base-port", "0", "--metrics-base-port", "0") if ports else ()
    process = subprocess.Popen(
        [*(command or (sys.executable, str(ZIPAPP))), "serve", "--host", "127.0.0.1", *free, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=env,
        cwd=cwd or tmp_path,
        start_new_session=True,
    )
    node = NodeProcess(process, runtime_dir)
    try:
        yield node
    finally:
        family = [process.pid, *child_pids(process.pid)]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        wait_until(lambda: not any(is_alive(pid) for pid in family), "the node's children end with it")
