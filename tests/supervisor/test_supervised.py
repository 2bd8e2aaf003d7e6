"""One child in the supervisor's care: output, reports, hangs and deaths of real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support import supervisor_children as children
from tests.support.node import NodeProcess, is_alive, wait_until
from tests.support.supervisor_host import child, start_supervisor, told

FAST = 50.0
"""Backoffs of seconds pass in a moment; for tests without heartbeats."""


def records(node: NodeProcess) -> list[str]:
    """The records of deaths."""
    return [path.read_text("utf-8", "backslashreplace") for path in sorted((node.runtime_dir / "deaths").glob("*"))]


def lines_of(node: NodeProcess, name: str) -> list[str]:
    """What one child has written, without its prefix."""
    return [line.removeprefix(f"[{name}] ") for line in node.lines if line.startswith(f"[{name}] ")]


SLOW_READER = """
import os, time
while data := os.read(0, 65536):
    os.write(1, data)
    time.sleep(0.015)
"""
"""Takes about 4 MB in a second, which a flood exceeds by far."""


@pytest.mark.parametrize("reader", ["cat", f"{sys.executable} -c '{SLOW_READER}'"], ids=["fast", "slow"])
def test_a_flood_is_whole_and_holds_up_nobody(tmp_path: Path, reader: str) -> None:
    """100,000 lines at once: each comes out, in order, with one prefix; a reader that is behind slows the child."""
    quiet = child("b", children.serve)
    flood = child("a", children.flood, 100_000)
    with start_supervisor(tmp_path, flood, quiet, prefix=("/bin/bash", "-c", f'exec "$0" "$@" > >({reader})')) as node:
        node.wait_line(r"^\[a\] line 099999 x")
        node.wait_line("a is ready")
        assert node.stop() == 0
    assert [line.split()[1] for line in lines_of(node, "a")] == [f"{number:06}" for number in range(100_000)]
    assert all(re.match(r"\[(a|supervisor)\] ", line) for line in node.lines)


def test_every_kind_of_bytes_comes_out_prefixed(tmp_path: Path) -> None:
    """Long lines are cut, carriage returns end lines, bytes that are no UTF-8 and colours stay, half a line comes."""
    file = tmp_path / "bytes"
    long = b"y" * 200_000
    file.write_bytes(b"plain\n" + long + b"\n10%\r20%\r\n\xff\xfe\n\x1b[31mred\x1b[0m\nhalf a line")
    with start_supervisor(tmp_path, child("a", children.write, str(file))) as node:
        node.wait_line("a is ready")
        node.stop()
    lines = lines_of(node, "a")
    pieces = [line for line in lines if line.startswith("y")]
    assert "".join(pieces).encode() == long
    assert [line for line in lines if line not in pieces] == [
        *("plain", "10%", "20%", r"\xff\xfe", "\x1b[31mred\x1b[0m", "half a line")
    ]


def test_in_json_every_line_is_an_object(tmp_path: Path) -> None:
    """The children's native lines and the supervisor's own, each with its source."""
    file = tmp_path / "bytes"
    file.write_bytes(b"native\n\xff\n")
    with start_supervisor(tmp_path, child("a", children.write, str(file), 2), log_format="json") as node:
        node.wait_line('"a is ready"')
        node.stop()
    events = [json.loads(line) for line in node.lines]
    assert [event["message"] for event in events if event["source"] == "a"] == ["native", "\\xff"]
    assert {event["source"] for event in events} == {"a", "supervisor"}
    assert all({"time", "level", "message"} <= event.keys() for event in events)


def test_a_crash_is_told_with_its_cause_and_kept_with_its_last_words(tmp_path: Path) -> None:
    """One line, and a record for whoever is called at night; the words come before the line."""
    with start_supervisor(tmp_path, child("a", children.abort_in_mid_sentence), speed=FAST) as node:
        node.wait_line(r"ERROR a died: killed by SIGABRT pid=\d+ uptime_seconds=\d")
        node.wait_line("restarting a in 1 s")
        wait_until(lambda: len(records(node)) > 1, "another death")
        node.stop()
    (first, *_) = records(node)
    assert re.match(r"a pid \d+ after [\d.]+ s: killed by SIGABRT\n\n", first)
    for words in ("printed and not flushed", "native words", "half a line", "Fatal Python error: Aborted"):
        assert words in first
        assert words in node.output
    assert node.output.index("half a line") < node.output.index("a died")


@pytest.mark.parametrize(
    ("target", "arguments", "cause"),
    [
        (children.fail, ("value",), r"exit code 1 \(a defect\)"),
        (children.end, (), r"exit code 0 \(ended by itself\)"),
        (children.end, ("it had enough",), r"exit code 0 \(it had enough\)"),
        (children.die_ready, (signal.SIGSEGV,), "killed by SIGSEGV"),
        (children.die_ready, (signal.SIGTERM,), "killed by SIGTERM"),
        (children.die_ready, (signal.SIGKILL,), r"killed by SIGKILL \(by somebody, or by the kernel for memory\)"),
    ],
)
def test_every_end_outside_shutdown_is_told_and_followed_by_a_restart(
    tmp_path: Path, target: object, arguments: tuple[object, ...], cause: str
) -> None:
    """Exit code 0 included."""
    assert callable(target)
    with start_supervisor(tmp_path, child("a", target, *arguments), speed=FAST) as node:
        node.wait_line(rf"a died: {cause}")
        node.wait_for(lambda: node.output.count("started a") >= 3, "two restarts")
        assert node.stop() == 0


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (children.be_silent, "no heartbeat for 0.6 s"),
        (children.hold_the_interpreter, "no heartbeat for 0.6 s"),
    ],
)
def test_a_silent_child_is_replaced(tmp_path: Path, target: object, reason: str) -> None:
    """Whatever keeps it from beating, a native call that lets no other thread run included."""
    assert callable(target)
    with start_supervisor(tmp_path, child("a", target), heartbeat_timeout_seconds=0.6) as node:
        node.wait_line(f"a is killed: {reason}")
        node.wait_line(rf"a died: killed by SIGKILL by the supervisor \({reason}\)")
        node.wait_for(lambda: node.output.count("started a") == 2, "the restart")


def test_a_stopped_child_is_found_and_really_ends(tmp_path: Path) -> None:
    """SIGSTOP keeps it from everything but SIGKILL; the component is told before it is gone."""
    with start_supervisor(
        tmp_path, child("a", children.serve), component="healthy", heartbeat_timeout_seconds=0.6
    ) as node:
        node.wait_line("a is ready")
        pid = node.worker_pid("a")
        os.kill(pid, signal.SIGSTOP)
        node.wait_line("a is killed: no heartbeat")
        wait_until(lambda: not is_alive(pid), "its end")
        node.wait_for(lambda: node.worker_pid("a") != pid, "the restart")
        node.wait_for(lambda: told(node).count("ready a 1") == 2, "it serves again")
    assert node.output.index("component: gone a") < node.output.index("a died")


def test_a_run_past_its_limit_is_a_hang(tmp_path: Path) -> None:
    """The child beats and its run does not end."""
    endless = child("a", children.run_for_ever, run_limit_seconds=0.5)
    with start_supervisor(tmp_path, endless) as node:
        node.wait_line(
            r"a died: killed by SIGKILL by the supervisor \(a run has been on its device for more than 0.5 s\)"
        )


def test_silence_while_a_model_is_loaded_is_no_hang(tmp_path: Path) -> None:
    """A child that loads outlives many timeouts, next to one that is silent without a reason."""
    loading, silent = child("a", children.load_silently), child("b", children.be_silent)
    with start_supervisor(tmp_path, loading, silent, heartbeat_timeout_seconds=0.4) as node:
        node.wait_for(lambda: node.output.count("b is killed") == 2, "the silent one is replaced twice")
        assert "a is killed" not in node.output


def test_a_child_that_closes_its_output_is_served_on(tmp_path: Path) -> None:
    """No output is no reason for anything."""
    with start_supervisor(tmp_path, child("a", children.close_output)) as node:
        node.wait_line("a is ready")
        assert node.stop() == 0
    assert "a stopped" in node.output


@pytest.mark.parametrize("new_session", [False, True], ids=["same-group", "new-session"])
def test_a_grandchild_that_keeps_the_log_open_holds_up_nothing(tmp_path: Path, new_session: bool) -> None:
    """The death is told and the child restarted; the grandchild ends with it, unless it has left the group."""
    file = tmp_path / "pid"
    parent = child("a", children.leave_grandchild, str(file), new_session)
    with start_supervisor(tmp_path, parent, speed=FAST) as node:
        node.wait_line("a died: killed by SIGKILL")
        grandchild = int(file.read_text())
        node.wait_for(lambda: node.output.count("started a") >= 2, "the restart")
        if new_session:
            assert is_alive(grandchild)
            os.kill(grandchild, signal.SIGKILL)
        else:
            wait_until(lambda: not is_alive(grandchild), "the grandchild's end")
        assert node.stop() == 0


def test_a_child_that_cannot_be_spawned_is_tried_again(tmp_path: Path) -> None:
    """Without descriptors there is no child; the reason is told, and the node comes up once there are some."""
    with start_supervisor(tmp_path, child("a", children.serve), component="greedy") as node:
        node.wait_line("failed to spawn a: .*Too many open files")
        node.wait_line("restarting a in 1 s")
        node.wait_line("a is ready")
        assert node.stop() == 0
