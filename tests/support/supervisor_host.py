"""A supervisor in a process of its own, over children of a test's choosing: real signals, pipes and deaths.

`start_supervisor` runs this module, which reads what to supervise from its one argument. A clock that runs faster
than the real one lets backoffs of seconds pass in no time.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from reactant_node.config.schema import SupervisorConfig
from reactant_node.errors import AddressInUse, ExitCode
from reactant_node.reports import Ready
from reactant_node.supervisor.sink import Sink, SinkHandler
from reactant_node.supervisor.spec import ChildSpec
from reactant_node.supervisor.supervisor import Supervisor
from reactant_node.telemetry import logs
from tests.support import supervisor_children
from tests.support.node import LIMIT_SECONDS, ROOT, NodeProcess, child_pids, is_alive, wait_until

FLUSH_SECONDS = 1.0


class FastClock:
    """The monotonic clock, faster."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def now_ns(self) -> int:
        """Nanoseconds of a faster world."""
        return round(time.monotonic_ns() * self._speed)


class ScriptedComponent:
    """A component that fails as a test wants; what it is told, it logs.

    Args:
        script: `healthy`; `fails N` times, then is healthy; `stuck`: fails, does not end, and cannot start again;
            `taken`: cannot start at all; `busy`: never drained; `greedy`: takes every descriptor, for a second.
    """

    def __init__(self, script: str) -> None:
        self._kind, _, count = script.partition(" ")
        self._failures_left = int(count or 0)
        self._starts = 0

    @property
    def name(self) -> str:
        """For log lines."""
        return "gateway"

    def start(self) -> None:
        """Start, or not."""
        self._starts += 1
        if self._kind == "taken" or (self._kind == "stuck" and self._starts > 1):
            raise AddressInUse("port 8001 is taken")
        self._say(f"start {self._starts}")
        if self._kind == "greedy":
            _take_descriptors(1.0)

    def failure(self, _: int) -> str | None:
        """Fail as often as is left."""
        if self._kind == "stuck":
            return "its loop has not turned"
        if not self._failures_left:
            return None
        self._failures_left -= 1
        return "its thread ended"

    def child_ready(self, name: str, ready: Ready) -> None:
        """Log it."""
        self._say(f"ready {name} {ready.grpc_port}")

    def child_gone(self, name: str) -> None:
        """Log it."""
        self._say(f"gone {name}")

    def begin_drain(self) -> None:
        """Log it."""
        self._say("drain")

    def drained(self) -> bool:
        """At once, but for a busy one."""
        return self._kind != "busy"

    def stop(self, _: float) -> bool:
        """Stop, but for a stuck one."""
        self._say("stop")
        return self._kind != "stuck"

    def _say(self, text: str) -> None:
        logging.getLogger(__name__).info("component: %s", text)


def main(document: str) -> int:
    """Supervise as the document says."""
    order: dict[str, Any] = json.loads(document)
    sink = Sink(os.dup(1))
    logs.configure(order["log_format"], source="supervisor", handler=SinkHandler(sink, order["log_format"]))
    supervisor = Supervisor(
        [_spec(child) for child in order["children"]],
        SupervisorConfig(**order["config"]),
        clock=FastClock(order["speed"]),
        sink=sink,
        log_format=order["log_format"],
        runtime_dir=Path(order["runtime_dir"]),
        workspace_root=order["workspace_root"],
    )
    try:
        component = ScriptedComponent(order["component"]) if order["component"] else None
        return supervisor.run(component)
    except AddressInUse as error:
        os.write(2, f"cannot start: {error}\n".encode())
        return ExitCode.FAILURE
    finally:
        sink.close(FLUSH_SECONDS)


def _take_descriptors(seconds: float) -> None:
    """Nobody gets one any more, for a while."""
    taken: list[IO[bytes]] = []

    def give_back() -> None:
        while taken:
            taken.pop().close()

    threading.Timer(seconds, give_back).start()
    try:
        while True:
            taken.append(open("/dev/null", "rb"))  # noqa: SIM115, PTH123 - held until the timer
    except OSError:
        return


def _spec(child: Mapping[str, Any]) -> ChildSpec:
    target: Callable[..., None] = getattr(supervisor_children, child["target"])
    return ChildSpec(
        child["name"], target, tuple(child["args"]), child["environment"], child.get("run_limit_seconds", 0.0)
    )


def child(
    name: str,
    target: Callable[..., None],
    *args: object,
    environment: Mapping[str, str | None] | None = None,
    run_limit_seconds: float = 0.0,
) -> dict[str, Any]:
    """One child of `start_supervisor`: a function of `supervisor_children` and its arguments."""
    return {
        "name": name,
        "target": target.__name__,
        "args": args,
        "environment": environment or {},
        "run_limit_seconds": run_limit_seconds,
    }


def told(node: NodeProcess) -> list[str]:
    """What a `ScriptedComponent` was told."""
    return re.findall(r"component: (.*)$", node.output, re.MULTILINE)


@contextmanager
def start_supervisor(
    tmp_path: Path,
    *children: Mapping[str, Any],
    component: str = "",
    speed: float = 1.0,
    log_format: str = "text",
    workspace_root: str = "",
    prefix: Sequence[str] = (),
    **config: float,
) -> Iterator[NodeProcess]:
    """Supervise in a process of its own, and end it by SIGKILL where the test has not.

    Args:
        tmp_path: its run-time folder is made in here.
        children: as `child` makes them.
        component: the script of a `ScriptedComponent`, or none.
        speed: of its clock.
        log_format: `text` or `json`.
        workspace_root: as `Supervisor` takes it.
        prefix: a command that runs it: `unshare --pid --fork`.
        config: of `SupervisorConfig`.
    """
    runtime_dir = tmp_path / "run"
    runtime_dir.mkdir(parents=True, exist_ok=True)
    document = json.dumps(
        {
            "children": children,
            "component": component,
            "speed": speed,
            "log_format": log_format,
            "workspace_root": workspace_root,
            "config": config,
            "runtime_dir": str(runtime_dir),
        }
    )
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", __name__, document],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
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
        wait_until(lambda: not any(is_alive(pid) for pid in family), "the children end with it")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
