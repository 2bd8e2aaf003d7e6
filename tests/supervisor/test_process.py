"""What a child is born with, and how it is started, asked and buried."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reactant_node.errors import ExitCode
from reactant_node.reports import Ready, Report
from reactant_node.supervisor.process import ChildProcess, reap_orphans, spawn
from reactant_node.supervisor.spec import ChildSpec
from tests.support import supervisor_children as children
from tests.support.node import LIMIT_SECONDS, is_alive, wait_until


@contextmanager
def started(
    target: Callable[..., None],
    *args: object,
    environment: dict[str, str | None] | None = None,
    workspace_root: str = "",
) -> Iterator[ChildProcess]:
    """A child, killed afterwards."""
    spec = ChildSpec("worker0", target, args, environment or {})
    process = spawn(spec, workspace_root=workspace_root)
    try:
        yield process
    finally:
        process.send(signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        process.close()


def born_with(tmp_path: Path, argument: str = "ärgument", **settings: Any) -> dict[str, Any]:
    """What a child says of itself."""
    file = tmp_path / "born.json"
    with started(children.describe, str(file), argument, **settings):
        wait_until(file.exists, "the child's description")
        document: dict[str, Any] = json.loads(file.read_text())
    return document


def reports_of(process: ChildProcess, count: int) -> list[Report]:
    """The first reports."""
    found: list[Report] = []

    def enough() -> bool:
        if (report := process.read_report()) is not None:
            found.append(report)
        return len(found) >= count

    wait_until(enough, "reports")
    return found


def test_a_child_is_born_with_what_its_spec_says_and_nothing_else(tmp_path: Path) -> None:
    """Arguments, a path to import from, a group of its own, an empty standard input, and four descriptors."""
    born = born_with(tmp_path)
    assert born["arguments"] == ["ärgument"]
    assert born["path"] == sys.path
    assert born["group"] not in (os.getpgid(0), os.getpid())
    assert born["stdin"] == ""
    assert born["main"] is None  # the parent's main module is not run again
    kinds = {int(number): kind.partition(":")[0] for number, kind in born["descriptors"].items()}
    assert (kinds[1], kinds[2]) == ("pipe", "pipe")
    assert born["descriptors"]["1"] == born["descriptors"]["2"]
    assert sorted(kinds.values()).count("socket") == 1
    assert len(kinds) == 4


def test_its_environment_is_the_parents_with_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set, emptied and removed; the parent's own never moves."""
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("EMPTIED", "full")
    monkeypatch.setenv("REMOVED", "here")
    born = born_with(tmp_path, environment={"SET": "set", "EMPTIED": "", "REMOVED": None})
    found = born["environment"]
    assert (found["KEPT"], found["SET"], found["EMPTIED"]) == ("kept", "set", "")
    assert "REMOVED" not in found
    assert "SET" not in os.environ


def test_a_checkout_comes_first_on_its_path(tmp_path: Path) -> None:
    """And its code wins over what the parent has loaded."""
    root = tmp_path / "checkout"
    (root / "tests" / "support").mkdir(parents=True)
    source = Path(children.__file__)
    (root / "tests" / "support" / source.name).write_text(source.read_text())
    born = born_with(tmp_path, workspace_root=str(root))
    assert born["path"] == [str(root), *sys.path]
    assert born["module"] == str(root / "tests" / "support" / source.name)


def test_the_working_folder_cannot_slip_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `pickle.py` where the node was started is not run."""
    (tmp_path / "pickle.py").write_text("raise SystemExit('slipped in')")
    monkeypatch.chdir(tmp_path)
    assert born_with(tmp_path)["arguments"] == ["ärgument"]


def test_what_it_is_is_to_be_seen_in_the_process_list() -> None:
    """By the name it has in the log."""
    with started(children.serve) as process:
        reports_of(process, 1)
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert command[-3:] == [b"reactant-node", b"worker0", b""]


def test_arguments_of_any_size_arrive(tmp_path: Path) -> None:
    """More than a pipe holds, without anybody waiting for the child."""
    assert born_with(tmp_path, argument="x" * 1_000_000)["arguments"] == ["x" * 1_000_000]


def test_reports_arrive_whole_and_in_order() -> None:
    """Each message is one report, and the end of the child is the end of them."""
    with started(children.serve) as process:
        found = reports_of(process, 5)
        assert found[1] == Ready(grpc_port=1, metrics_port=2)
        process.send(signal.SIGTERM)
        process.wait(LIMIT_SECONDS)
        with pytest.raises(EOFError):
            reports_of(process, 1_000_000)


def test_nothing_waits_for_a_child_that_is_stopped() -> None:
    """Stopped in mid-sentence or anywhere else, it has no report and no output now; a SIGKILL still ends it."""
    with started(children.flood_for_ever) as process:
        reports_of(process, 2)
        process.send(signal.SIGSTOP)
        wait_until(lambda: process.read_log() is None, "its output is read to the end")
        while process.read_report() is not None:
            pass
        assert process.exit_code() is None
        process.send(signal.SIGKILL)
        wait_until(lambda: process.exit_code() == -signal.SIGKILL, "its end")


def test_an_exit_code_is_the_childs_or_its_signals() -> None:
    """None while it runs; asking again gives the same."""
    with started(children.serve) as process:
        reports_of(process, 2)
        assert process.exit_code() is None
        process.send(signal.SIGTERM)
        wait_until(lambda: process.exit_code() is not None, "its end")
        assert (process.exit_code(), process.exit_code()) == (0, 0)
        assert repr(process) == f"<ChildProcess {process.pid}>"


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    """A grandchild that stays behind would hold the device and the port."""
    file = tmp_path / "pid"
    with started(children.leave_grandchild, str(file)) as process:
        wait_until(lambda: process.exit_code() == -signal.SIGKILL, "the child's end")
        wait_until(lambda: not is_alive(int(file.read_text())), "the grandchild's end")


def open_descriptors() -> set[str]:
    """Of this process."""
    return {link.name for link in Path("/proc/self/fd").iterdir()}


@contextmanager
def room_for(count: int) -> Iterator[None]:
    """No more than so many descriptors are to be had."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), set(map(int, open_descriptors()))
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_code_of_ours_that_is_gone_is_said_by_the_exit_code(tmp_path: Path) -> None:
    """A checkout of another version: started a few times, not for ever, and the log says what is missing."""
    package = tmp_path / "reactant_node"
    package.mkdir()
    (package / "__init__.py").touch()
    with started(children.serve, workspace_root=str(tmp_path)) as process:
        wait_until(lambda: process.exit_code() is not None, "its end")
        assert process.exit_code() == ExitCode.BOOT
        assert process.read_log() == (
            b"this node's own code cannot be loaded: No module named 'reactant_node.supervisor'\n"
        )


def test_a_report_that_cannot_be_read_is_the_last() -> None:
    """Whatever a child sends, the supervisor goes on; this one is then silent, and is replaced for that."""
    with started(children.send_nonsense) as process, pytest.raises(EOFError):
        reports_of(process, 1_000_000)


@pytest.mark.parametrize("room", range(6))
def test_a_start_without_descriptors_leaves_nothing_behind(room: int) -> None:
    """Wherever it fails, it raises OSError, and whatever was opened is closed again."""
    before = len(open_descriptors())
    with room_for(room), pytest.raises(OSError, match="Too many open files"):
        spawn(ChildSpec("worker0", children.serve), workspace_root="")
    assert len(open_descriptors()) == before


def test_a_start_that_cannot_be_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise where there is no interpreter any more."""
    before = len(open_descriptors())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError):
        spawn(ChildSpec("worker0", children.serve), workspace_root="")
    assert len(open_descriptors()) == before


def test_orphans_are_reaped_and_own_children_left_alone() -> None:
    """What others wait for stays for them."""
    own = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    reap_orphans({own.pid})
    assert own.wait(LIMIT_SECONDS) == 0
    reap_orphans(set())


def test_a_frozen_parent_does_not_stop_its_children(tmp_path: Path) -> None:
    """A parent that reads no reports for long gets no more beats, and the child goes on."""
    with started(children.beat_a_lot, str(tmp_path / "done")) as process:
        wait_until((tmp_path / "done").exists, "a thousand beats are sent")
        assert isinstance(process.reports, socket.socket)
