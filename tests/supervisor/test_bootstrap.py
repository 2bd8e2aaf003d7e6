"""The first code of ours in a child: what an end means, and that no child outlives its parent."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from reactant_node.errors import ExitCode
from reactant_node.reports import Failed
from reactant_node.supervisor.process import ChildProcess, spawn
from reactant_node.supervisor.spec import ChildSpec
from tests.support import supervisor_children as children
from tests.support.node import LIMIT_SECONDS, ROOT, wait_until


def start(target: Callable[..., None], *args: object) -> ChildProcess:
    """Start a child."""
    return spawn(ChildSpec("worker0", target, args), workspace_root="")


def end_of(process: ChildProcess) -> tuple[int | None, str, str]:
    """Wait for a child's end: its exit code, the reason it reported, and what it wrote."""
    wait_until(lambda: process.exit_code() is not None, "its end")
    reason, output = "", b""
    with suppress(EOFError):
        while True:
            if isinstance(report := process.read_report(), Failed):
                reason = report.reason
    while data := process.read_log():
        output += data
    process.close()
    return process.exit_code(), reason, output.decode()


@pytest.mark.parametrize(
    ("kind", "code", "reason", "traceback"),
    [
        ("config", ExitCode.CONFIG, "a.b: got 1; use 2 c: got 3; use 4", False),
        ("boot", ExitCode.BOOT, "no provider", False),
        ("port", ExitCode.FAILURE, "127.0.0.1:1 is taken", False),
        ("import", ExitCode.BOOT, "no module named nothing", True),
        ("value", ExitCode.FAILURE, "a defect", True),
        ("exit", ExitCode.FAILURE, "0", True),
    ],
)
def test_an_error_becomes_an_exit_code_a_reason_and_a_log(
    kind: str, code: ExitCode, reason: str, traceback: bool
) -> None:
    """One line where the message says it all, a traceback where it does not."""
    assert (found := end_of(start(children.fail, kind)))[:2] == (code, reason)
    assert reason.rsplit(maxsplit=1)[-1] in found[2]
    assert ("Traceback" in found[2]) == traceback


def test_returning_is_the_proper_end() -> None:
    """Exit code 0, without a word."""
    assert end_of(start(children.end)) == (0, "", "")


def test_a_long_reason_is_cut() -> None:
    """It has to fit a message, and a line."""
    code, reason, _ = end_of(start(children.fail, "long"))
    assert (code, reason) == (ExitCode.FAILURE, "x" * 1000)


def test_arguments_that_cannot_be_loaded_are_told_like_a_missing_module() -> None:
    """A checkout that lacks what the parent sends cannot boot; that is no crash loop for ever."""
    code, reason, output = end_of(start(children.end, children.Unloadable()))
    assert code == ExitCode.BOOT
    assert "no module named nothing" in reason
    assert "a module cannot be loaded" in output


def test_the_last_words_of_a_crash_come_out() -> None:
    """What was printed and not flushed, native words, half a line, and the stacks at the moment of death."""
    code, _, output = end_of(start(children.abort_in_mid_sentence))
    assert code == -signal.SIGABRT
    for words in (
        "printed and not flushed\n",
        "logged\n",
        "native words\n",
        "half a line",
        "Fatal Python error: Abort",
    ):
        assert words in output
    assert "abort_in_mid_sentence" in output


def test_an_interrupt_is_the_parents_affair() -> None:
    """A child goes on, and says nothing of it."""
    process = start(children.serve)
    wait_until(lambda: process.read_report() is not None, "it runs")
    for _ in range(3):
        process.send(signal.SIGINT)
    process.send(signal.SIGTERM)
    assert end_of(process) == (0, "", "")


@pytest.mark.parametrize("target", [children.serve, children.start_slowly])
def test_a_child_ends_when_its_sockets_other_end_does(target: Callable[..., None]) -> None:
    """Which only the parent holds: the companion of the kernel's signal."""
    process = start(target)
    wait_until(lambda: process.read_report() is not None, "it runs")
    process.reports.close()
    wait_until(lambda: process.exit_code() == ExitCode.FAILURE, "its end")
    os.close(process.log_fd)


def test_a_parent_that_died_before_its_child_could_ask_for_the_signal_is_noticed() -> None:
    """The child was adopted by then: it ends without running anything."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    adopted = "\n".join(
        [
            "import sys",
            "from reactant_node.supervisor.bootstrap import Order, run_child",
            f"order = Order({its.fileno()}, 2**22, ('builtins', 'print'), {pickle.dumps(('it ran',))!r})",
            "run_child(order)",
        ]
    )
    with ours, its:
        ended = subprocess.run(
            [sys.executable, "-c", adopted],
            cwd=ROOT,
            pass_fds=[its.fileno()],
            capture_output=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.FAILURE, b"", b"")
