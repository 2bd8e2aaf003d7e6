"""Signals as things to read."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading

import pytest

from reactant_node.supervisor.signals import ENQUEUED, SignalQueue, describe_threads
from tests.support.node import LIMIT_SECONDS, ROOT


def send(*numbers: signal.Signals) -> None:
    """Send signals to this process."""
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ENQUEUED)
def test_a_signal_is_a_thing_to_read(number: signal.Signals) -> None:
    """It does nothing by itself, and wakes whoever waits for the queue."""
    with SignalQueue() as queue, selectors.DefaultSelector() as selector:
        selector.register(queue, selectors.EVENT_READ)
        assert selector.select(0) == []
        send(number)
        assert selector.select(5)
        assert queue.take() == [number]
        assert queue.take() == []


def test_signals_come_in_order_and_none_is_lost() -> None:
    """Each one that the process gets is in the queue."""
    with SignalQueue() as queue:
        send(signal.SIGTERM, signal.SIGHUP, signal.SIGTERM)
        assert queue.take() == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]


def test_what_was_before_is_restored() -> None:
    """Handlers and the interpreter's own notice."""
    before = {number: signal.getsignal(number) for number in ENQUEUED}
    queue = SignalQueue()
    assert repr(queue) == "<SignalQueue idle>"
    with queue:
        assert repr(queue) == "<SignalQueue installed>"
        assert all(signal.getsignal(number) is not before[number] for number in ENQUEUED)
    assert {number: signal.getsignal(number) for number in ENQUEUED} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_process_without_standard_error_has_signals_too() -> None:
    """Started by `2>&-`: Python has no `sys.stderr` then."""
    code = "from reactant_node.supervisor.signals import SignalQueue as Q; q = Q(); q.__enter__(); print(q)"
    answer = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )
    assert (answer.returncode, answer.stdout) == (0, b"<SignalQueue installed>\n")


def test_every_thread_is_described_by_name_and_frames() -> None:
    """For whoever wonders what a silent node is doing."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="a-waiting-thread")
    thread.start()
    lines = describe_threads()
    go.set()
    thread.join()
    assert "thread a-waiting-thread:" in lines
    assert any("describe_threads" in line for line in lines)
    assert not any("\n" in line for line in lines)
