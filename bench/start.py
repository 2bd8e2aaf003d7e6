"""How light the node is: `make bench-start` prints one line for each figure, with what it should stay below.

Times are wall time on this machine, from the command to /readyz 200 with two CPU workers; warm figures are the best
of a few, because everything else on the machine only adds. Nothing here fails: a busy machine is not a defect.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.node import ROOT, SHIV_ROOT, ZIPAPP, NodeProcess, start_node

REPEATS = 3
EXTRA_MODELS = 100
DEMO = ROOT / "reactant_node" / "demo"


def main() -> None:
    """Prints all figures."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # some build machines set it, and then nothing is ever warm
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        scratch = Path(folder)
        report("size of the file", ZIPAPP.stat().st_size / 1e6, "MB", 60)
        report("cold start", start_seconds(scratch, scratch / "shiv", "--demo"), "s")
        report("warm start", best(lambda: start_seconds(scratch, SHIV_ROOT, "--demo")), "s", 4)
        report("version", best(version_seconds), "s", 0.4)
        with ready_node(scratch, SHIV_ROOT, "--demo") as node:
            report("parent", resident_megabytes(node.pid), "MB", 60)
            report("idle worker", resident_megabytes(node.worker_pid()), "MB")
        one, many = (models(scratch / f"models{count}", count) for count in (1, 1 + EXTRA_MODELS))
        grown = best(lambda: start_seconds(scratch, SHIV_ROOT, "--models", str(many)))
        grown -= best(lambda: start_seconds(scratch, SHIV_ROOT, "--models", str(one)))
        report("each extra tiny model", 1000 * grown / EXTRA_MODELS, "ms", 50)


def report(what: str, found: float, unit: str, most: float | None = None) -> None:
    """One line: the figure, and the target where there is one."""
    target = "" if most is None else f"  (target: at most {most:g} {unit}{'' if found <= most else ', MISSED'})"
    print(f"{what:>22}: {found:8.2f} {unit}{target}", flush=True)


def best(measure: Callable[[], float]) -> float:
    """The smallest of some measurements."""
    return min(measure() for _ in range(REPEATS))


@contextmanager
def ready_node(scratch: Path, shiv_root: Path, *arguments: str) -> Iterator[NodeProcess]:
    """A node with two CPU workers that is ready; stopped as an operator stops it."""
    command = (*arguments, "--backend", "cpu", "--workers", "2")
    with start_node(scratch, *command, environment={"SHIV_ROOT": str(shiv_root)}) as node:
        yield node.wait_ready()
        node.stop()


def start_seconds(scratch: Path, shiv_root: Path, *arguments: str) -> float:
    """From the command to readiness."""
    began = time.monotonic()
    with ready_node(scratch, shiv_root, *arguments):
        return time.monotonic() - began


def version_seconds() -> float:
    """The shortest command, from start to end."""
    began = time.monotonic()
    command = [sys.executable, str(ZIPAPP), "version"]
    environment = {**os.environ, "SHIV_ROOT": str(SHIV_ROOT)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    return time.monotonic() - began


def resident_megabytes(pid: int) -> float:
    """Resident memory of one process, pages shared with others included."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def models(folder: Path, count: int) -> Path:
    """A repository of so many copies of the smallest model."""
    for number in range(count):
        shutil.copytree(DEMO / "simple", folder / f"simple{number}")
    return folder


if __name__ == "__main__":
    main()
