"""The supervisor's loop over real processes: signals, shutdown, exit codes, the component, and life as PID 1."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from reactant_node.clock import MonotonicClock
from reactant_node.config.schema import SupervisorConfig
from reactant_node.supervisor.child import State
from reactant_node.supervisor.process import ChildProcess
from reactant_node.supervisor.sink import Sink
from reactant_node.supervisor.spec import ChildSpec
from reactant_node.supervisor.supervisor import ChildStatistics, Supervisor
from tests.support import supervisor_children as children
from tests.support.node import LIMIT_SECONDS, NodeProcess, child_pids, is_alive, wait_until
from tests.support.supervisor_host import child, start_supervisor, told

FAST = 50.0
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def says(node: NodeProcess, words: str, count: int) -> bool:
    """It has said so, so often."""
    return node.output.count(words) == count


def wait_ready(node: NodeProcess, *names: str) -> None:
    """Every child has been ready."""
    for name in names:
        node.wait_line(f"{name} is ready")


# --- signals and shutdown ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_drains_stops_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    """The component turns unready first; then the children end as asked, without a record of death."""
    pair = (child("a", children.serve), child("b", children.serve))
    with start_supervisor(tmp_path, *pair, component="healthy") as node:
        wait_ready(node, "a", "b")
        node.signal(number)
        assert node.wait_exit() == 0
    start, *ready, drain, gone, also_gone, stop = told(node)
    assert (start, drain, stop) == ("start 1", "drain", "stop")
    assert sorted(ready) == ["ready a 1", "ready b 1"]
    assert sorted([gone, also_gone]) == ["gone a", "gone b"]
    assert f"received {number.name}: draining, then stopping" in node.output
    assert "node stopped exit_code=0" in node.lines[-1]
    assert not (node.runtime_dir / "deaths").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_whole_group_reaches_the_parent_alone(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in a terminal, or a shell that kills its job: children drain when they are told, and print nothing."""
    slow = child("a", children.serve)
    with start_supervisor(tmp_path, slow, component="busy", exit_timeout_seconds=2.0) as node:
        wait_ready(node, "a")
        os.killpg(node.pid, number)
        assert node.wait_exit() == 0
    assert node.output.count("a stopped") == 1
    assert node.output.index("a stopped") > node.output.index("component: drain")
    assert "Traceback" not in node.output


@pytest.mark.parametrize("when", ["before-ready", "loading"])
def test_a_child_that_is_starting_does_not_delay_the_end(tmp_path: Path, when: str) -> None:
    """It has no calls to finish, and is told to end while the others still drain."""
    target = children.start_slowly
    with start_supervisor(tmp_path, child("a", target), component="busy", exit_timeout_seconds=2.5) as node:
        node.wait_line("started a")
        if when == "loading":
            pid = node.worker_pid("a")
            node.wait_for(lambda: len(os.listdir(f"/proc/{pid}/task")) > 1, "its target runs")  # noqa: PTH208
        node.signal(signal.SIGTERM)
        node.wait_line("a stopped")
        assert node.process.poll() is None
        assert node.wait_exit() == 0
    assert "died" not in node.output


def test_one_deadline_holds_for_everything(tmp_path: Path) -> None:
    """Children that never end and a component that never drains cost no more than the timeout together."""
    stubborn = [child(name, children.ignore_sigterm) for name in ("a", "b", "c")]
    with start_supervisor(tmp_path, *stubborn, component="busy", exit_timeout_seconds=1.5) as node:
        wait_ready(node, "a", "b", "c")
        began = time.monotonic()
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0
        assert time.monotonic() - began > 1.3
    died = re.findall(r"(\w) died: killed by SIGKILL by the supervisor \(the time for stopping is over\)", node.output)
    assert sorted(died) == ["a", "b", "c"]


def test_a_process_that_cannot_be_ended_does_not_keep_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver may hold it in the kernel: at the deadline the node says so and goes, with exit code 1."""
    monkeypatch.setattr(ChildProcess, "exit_code", lambda _: None)
    sink = Sink(os.open(os.devnull, os.O_WRONLY))
    supervisor = Supervisor(
        [ChildSpec("a", children.serve)],
        SupervisorConfig(exit_timeout_seconds=0.1),
        clock=MonotonicClock(),
        sink=sink,
        log_format="text",
        runtime_dir=tmp_path,
    )
    assert repr(supervisor).startswith("<Supervisor <Shutdown RUNNING OK> None [<SupervisedChild a no process")
    assert supervisor.statistics() == (ChildStatistics("a", State.STOPPED, 0),)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert supervisor.run() == 1
    timer.join()
    sink.close(1)
    assert "a cannot be ended, not even by SIGKILL" in caplog.text
    assert supervisor.restarts() == {"a": 0}


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    """The drain is over at once, and so is patience with the children."""
    with start_supervisor(
        tmp_path, child("a", children.ignore_sigterm), component="busy", exit_timeout_seconds=600
    ) as node:
        wait_ready(node, "a")
        node.signal(signal.SIGTERM)
        node.wait_line("received SIGTERM: draining")
        time.sleep(0.25)  # closer together they are one
        node.signal(signal.SIGTERM)
        node.wait_line("received SIGTERM again: stopping without waiting")
        node.wait_line("a died: killed by SIGKILL by the supervisor")
        assert node.wait_exit() == 0


def test_a_child_that_dies_during_the_drain_is_not_restarted(tmp_path: Path) -> None:
    """Nor is it said that it will be; its death is told all the same."""
    with start_supervisor(
        tmp_path, child("a", children.serve), component="busy", exit_timeout_seconds=1.5, speed=1
    ) as node:
        wait_ready(node, "a")
        node.signal(signal.SIGTERM)
        node.wait_line("component: drain")
        os.kill(node.worker_pid("a"), signal.SIGKILL)
        assert node.wait_exit() == 0
    assert "a died: killed by SIGKILL (by somebody" in node.output
    assert "restarting" not in node.output


def test_a_child_in_back_off_does_not_delay_the_end(tmp_path: Path) -> None:
    """There is nothing to stop."""
    with start_supervisor(tmp_path, child("a", children.end), exit_timeout_seconds=600) as node:
        node.wait_line("restarting a")
        assert node.stop() == 0


def test_sighup_changes_nothing_and_says_so(tmp_path: Path) -> None:
    """A terminal that goes away does not take the node along."""
    with start_supervisor(tmp_path, child("a", children.serve)) as node:
        wait_ready(node, "a")
        node.signal(signal.SIGHUP)
        node.wait_line("received SIGHUP, which changes nothing")
        assert node.stop() == 0


def test_sigquit_says_what_the_node_is_doing(tmp_path: Path) -> None:
    """The stacks of all threads, in the log like everything else, and the node goes on."""
    with start_supervisor(tmp_path, child("a", children.serve)) as node:
        wait_ready(node, "a")
        node.signal(signal.SIGQUIT)
        node.wait_line(r"^\[supervisor\] .*thread MainThread:")
        node.wait_line(r"^\[supervisor\] .*thread log-sink:")
        assert node.stop() == 0


def test_a_flood_does_not_keep_signals_from_being_heard(tmp_path: Path) -> None:
    """A child that writes without end is only slowed down itself."""
    flood = child("a", children.flood_for_ever)
    with start_supervisor(tmp_path, flood, child("b", children.serve), component="healthy") as node:
        wait_ready(node, "a", "b")
        os.kill(node.worker_pid("b"), signal.SIGKILL)
        node.wait_line("b died")
        assert node.stop() == 0
    *lines, last = re.findall(r"^\[a\] (.*)$", node.output, re.MULTILINE)
    assert set(lines) == {"flood"}
    assert "flood".startswith(last)


@pytest.mark.parametrize(
    "output",
    [">/dev/full", "| true", "| { sleep 600 & echo $!; wait; } >{file}"],
    ids=["full-disk", "reader-gone", "reader-stopped"],
)
def test_an_output_that_takes_nothing_stops_nothing(tmp_path: Path, output: str) -> None:
    """A flooding child and a quiet one run, deaths are kept, and the end is as always."""
    file = tmp_path / "stopped-reader"
    script = f'("$@"; echo $? >{tmp_path}/code) 2>&1 ' + output.replace("{file}", str(file))
    flood = child("a", children.flood_for_ever)
    quiet = child("b", children.serve)
    with start_supervisor(tmp_path, flood, quiet, prefix=("/bin/sh", "-c", script, "sh")) as node:
        supervisor = wait_for_supervisor(node)
        for number in (1, 2):
            kill_one_child(supervisor)
            wait_until(partial(has_records, node, number), "the record of a death")
        os.kill(supervisor, signal.SIGTERM)
        wait_until((tmp_path / "code").exists, "the end")
        wait_until(lambda: (tmp_path / "code").read_text() == "0\n", "exit code 0")
        if file.exists():
            os.kill(int(file.read_text()), signal.SIGKILL)


def kill_one_child(supervisor: int) -> None:
    """SIGKILL to the newest of two children, once it runs our code."""
    wait_until(lambda: len(child_pids(supervisor)) == 2, "two children run")
    victim = child_pids(supervisor)[1]
    wait_until(lambda: "reactant-node" in command_of(victim), "it is one of ours")
    os.kill(victim, signal.SIGKILL)


def has_records(node: NodeProcess, count: int) -> bool:
    """So many deaths have been recorded."""
    return len(list(node.runtime_dir.glob("deaths/*"))) >= count


def wait_for_supervisor(node: NodeProcess) -> int:
    """The process of the supervisor below a shell."""
    found: list[int] = []

    def look() -> bool:
        candidates = [node.pid]
        while candidates:
            pid = candidates.pop()
            below = child_pids(pid)
            if "supervisor_host" in command_of(pid) and "/bin/sh" not in command_of(pid):
                found.append(pid)
            candidates += below
        return bool(found)

    wait_until(look, "the supervisor runs")
    return found[0]


def command_of(pid: int) -> str:
    """Its command line, empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


# --- the parent's own death --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", [children.serve, children.ignore_sigterm, children.hold_the_interpreter, children.start_slowly]
)
def test_no_child_outlives_the_parent(tmp_path: Path, target: object) -> None:
    """After kill -9, in the middle of a native call that lets no other thread run, or while it starts."""
    assert callable(target)
    with start_supervisor(tmp_path, child("a", target), heartbeat_timeout_seconds=0) as node:
        node.wait_line("started a" if target is children.start_slowly else "a is ready")
        family = child_pids(node.pid)
        assert len(family) == 1
        node.signal(signal.SIGKILL)
        node.process.wait(LIMIT_SECONDS)
        wait_until(lambda: not any(map(is_alive, family)), "the children are gone", 10)


# --- exit codes --------------------------------------------------------------------------------------------------


def test_a_wrong_configuration_stops_the_node_with_78(tmp_path: Path) -> None:
    """At once, without a restart, and the others are stopped in order."""
    wrong = child("a", children.fail, "config")
    with start_supervisor(tmp_path, wrong, child("b", children.serve)) as node:
        assert node.wait_exit() == 78
    assert node.output.count("started a") == 1
    assert "a died: exit code 78 (a.b: got 1; use 2 c: got 3; use 4)" in node.output
    assert "a is given up: its configuration is wrong" in node.output
    assert "node stopped exit_code=78" in node.output


def test_a_node_whose_every_worker_cannot_boot_stops(tmp_path: Path) -> None:
    """After three attempts each; it never loops."""
    pair = [child(name, children.fail, "boot") for name in ("a", "b")]
    with start_supervisor(tmp_path, *pair, speed=FAST) as node:
        assert node.wait_exit() == 1
    for name in ("a", "b"):
        assert node.output.count(f"started {name}") == 3
        assert f"{name} is given up: it could not load its runtime 3 times in a row" in node.output
    assert "no worker is left that can start: the node stops" in node.output


def test_a_worker_that_cannot_boot_leaves_the_others_alone(tmp_path: Path) -> None:
    """The node goes on with those that can."""
    with start_supervisor(
        tmp_path, child("a", children.fail, "boot"), child("b", children.serve), speed=FAST, heartbeat_timeout_seconds=0
    ) as node:
        node.wait_line("a is given up")
        wait_ready(node, "b")
        assert node.stop() == 0


def test_a_budget_of_restarts_stops_the_node_with_1(tmp_path: Path) -> None:
    """So that the platform's own restart takes over."""
    with start_supervisor(tmp_path, child("a", children.end), speed=FAST, max_restarts=2) as node:
        assert node.wait_exit() == 1
    assert node.output.count("started a") == 3
    assert "3 failures in a row; REACTANT_SUPERVISOR_MAX_RESTARTS allows 2" in node.output


# --- the component -----------------------------------------------------------------------------------------------


def test_a_component_that_fails_is_restarted(tmp_path: Path) -> None:
    """The children go on meanwhile."""
    with start_supervisor(
        tmp_path, child("a", children.serve), component="fails 2", speed=FAST, heartbeat_timeout_seconds=0
    ) as node:
        wait_ready(node, "a")
        node.wait_line("gateway failed: its thread ended")
        node.wait_line("component: start 3")
        assert node.stop() == 0
    assert node.output.count("started a") == 1


def test_a_component_that_cannot_come_back_ends_the_node_with_1(tmp_path: Path) -> None:
    """Its thread is stuck on the port; the reason is the last thing said before the stop."""
    with start_supervisor(
        tmp_path, child("a", children.serve), component="stuck", speed=FAST, heartbeat_timeout_seconds=0
    ) as node:
        assert node.wait_exit() == 1
    assert "gateway does not end; its ports may stay taken" in node.output
    assert "gateway cannot be started again: port 8001 is taken: the node stops" in node.output


def test_a_component_that_cannot_start_means_that_nothing_is_started(tmp_path: Path) -> None:
    """A port that is taken is found before anything is spawned."""
    with start_supervisor(tmp_path, child("a", children.serve), component="taken") as node:
        assert node.wait_exit() == 1
    assert "cannot start: port 8001 is taken" in node.lines
    assert "started a" not in node.output


# --- zombies and PID 1 -------------------------------------------------------------------------------------------


def test_many_kills_leave_no_zombie(tmp_path: Path) -> None:
    """50 kills of ten children: each is buried, told, and started again; 20 records are kept."""
    names = [f"w{number}" for number in range(10)]
    many = [child(name, children.serve) for name in names]
    with start_supervisor(tmp_path, *many, speed=FAST, heartbeat_timeout_seconds=0) as node:
        for starts in range(10, 60, 10):
            node.wait_for(partial(says, node, " is ready", starts), "all are ready")
            for pid in child_pids(node.pid):
                os.kill(pid, signal.SIGKILL)
        node.wait_for(partial(says, node, " is ready", 60), "all are ready again")
        family = child_pids(node.pid)
        assert len(family) == 10
        assert all(map(is_alive, family))
        assert node.output.count("died: killed by SIGKILL") == 50
        assert len(list((node.runtime_dir / "deaths").iterdir())) == 20
        assert node.stop() == 0


def can_unshare() -> bool:
    """Whether this host lets us make a PID namespace."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "/bin/true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a PID namespace")
def test_as_pid_1_orphans_are_reaped_and_sigterm_is_heard(tmp_path: Path) -> None:
    """Its own children's ends are told as ever."""
    file = tmp_path / "orphan"
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with start_supervisor(
        tmp_path, child("a", children.orphan, str(file)), child("b", children.serve), prefix=prefix
    ) as node:
        wait_ready(node, "a", "b")
        (init,) = child_pids(node.pid)
        assert f"NSpid:\t{init}\t1\n" in Path(f"/proc/{init}/status").read_text()
        wait_until(lambda: len(child_pids(init)) == 2, "the orphan is reaped, the children are left")
        os.kill(child_pids(init)[1], signal.SIGKILL)
        node.wait_line("b died: killed by SIGKILL")
        os.kill(init, signal.SIGTERM)
        assert node.wait_exit() == 0
    assert "node stopped exit_code=0" in node.output
