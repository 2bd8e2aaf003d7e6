"""A whole node's life by the built zipapp: how it is started, what its output goes to, and how it ends."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc as triton

from tests.support import models
from tests.support.node import (
    LIMIT_SECONDS,
    ROOT,
    ZIPAPP,
    NodeProcess,
    child_pids,
    is_alive,
    start_node,
    wait_until,
)

pytestmark = pytest.mark.artifact

PAIR = ("--backend", "cpu", "--workers", "2")
SINGLE = ("--backend", "cpu", "--workers", "1")
ENDLESS = 60_000_000
"""Iterations of `slow` that take about a minute: longer than any of these tests waits."""


@contextmanager
def client_of(node: NodeProcess) -> Iterator[triton.InferenceServerClient]:
    """A tritonclient of the node."""
    client = triton.InferenceServerClient(node.grpc_target)
    try:
        yield client
    finally:
        client.close()


def infer_simple(node: NodeProcess, times: int = 1) -> None:
    """Calls of `simple`, their answers checked."""
    ones = np.ones((1, 16), dtype=np.int32)
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(ones)
    with client_of(node) as client:
        for _ in range(times):
            reply = client.infer("simple", inputs, client_timeout=LIMIT_SECONDS)
            np.testing.assert_array_equal(reply.as_numpy("OUTPUT0"), 2 * ones)


def restart_worker(node: NodeProcess) -> None:
    """Kill worker0, and wait until another one serves in its place."""
    ready = node.output.count("worker0 is ready")
    os.kill(node.worker_pid(), signal.SIGKILL)
    node.wait_line("worker0 died: killed by SIGKILL")
    node.wait_for(lambda: node.output.count("worker0 is ready") == ready + 1, "worker0 is ready again")


@contextmanager
def long_run(node: NodeProcess) -> Iterator[None]:
    """One call of `slow` is on a device."""
    with client_of(node) as client, ThreadPoolExecutor(1) as pool:

        def call() -> None:
            with suppress(triton.InferenceServerException):
                models.infer_slow(client)

        pool.submit(call)
        running = r"worker_inflight_requests\{[^}]*\} 1\.0"
        node.wait_for(lambda: re.search(running, node.get("/metrics")[1]) is not None, "the call is in flight")
        yield


# --- how it is started -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["isolated", "symlink-renamed", "pythonpath", "checkout"])
def test_however_it_is_started_workers_come_up_and_come_back(tmp_path: Path, way: str) -> None:
    """From the file, isolated or not, moved meanwhile, among foreign packages, or from a checkout as a module."""
    file = tmp_path / "node.pyz"
    file.symlink_to(ZIPAPP)
    command, environment = [sys.executable, "node.pyz"], {}
    if way == "isolated":
        command.insert(1, "-I")
    if way == "pythonpath":
        (tmp_path / "numpy").mkdir()
        (tmp_path / "numpy" / "__init__.py").write_text("raise ImportError('not ours')")
        environment["PYTHONPATH"] = str(tmp_path)
    if way == "checkout":
        command, environment = [sys.executable, "-m", "reactant_node"], {"REACTANT_WORKSPACE_ROOT": str(ROOT)}
    cwd = ROOT if way == "checkout" else tmp_path
    with start_node(tmp_path, "--demo", *PAIR, command=command, environment=environment, cwd=cwd) as node:
        node.wait_ready().wait_line("worker0 is ready")
        if way == "symlink-renamed":
            file.rename(tmp_path / "other.pyz")
        restart_worker(node)
        infer_simple(node, 4)
        assert len(child_pids(node.pid)) == 2
        assert node.stop() == 0
    assert node.output.count("reactant-node ") == 1  # no second supervisor


def can_unshare() -> bool:
    """Whether this host lets us make a PID namespace."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "/bin/true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a PID namespace")
def test_as_the_first_process_of_a_container_it_hears_and_buries(tmp_path: Path) -> None:
    """As PID 1, straight from the file: SIGTERM is heard, a killed worker comes back, no zombie is left."""
    command = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, str(ZIPAPP))
    with start_node(tmp_path, "--demo", *PAIR, command=command) as node:
        node.wait_ready()
        (init,) = child_pids(node.pid)
        assert f"NSpid:\t{init}\t1\n" in Path(f"/proc/{init}/status").read_text()
        node.wait_for(lambda: node.output.count("is ready grpc_port") == 2, "both are ready")
        victim = child_pids(init)[0]
        os.kill(victim, signal.SIGKILL)
        node.wait_for(lambda: node.output.count("is ready grpc_port") == 3, "the restart")
        assert all(map(is_alive, child_pids(init)))
        assert len(child_pids(init)) == 2
        infer_simple(node)
        os.kill(init, signal.SIGTERM)
        assert node.wait_exit() == 0
    assert "node stopped exit_code=0" in node.output


# --- how it ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [SINGLE, PAIR], ids=["one-worker", "two-workers"])
def test_ctrl_c_in_a_terminal_drains_like_sigterm(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """The whole group is interrupted: a call on the device is answered, no child acts on its own, no traceback."""
    models.write_slow(tmp_path / "models" / "slow", iterations=1_500_000)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *workers) as node:
        client = triton.InferenceServerClient(node.wait_ready().grpc_target)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(models.infer_slow, client)
            running = r"worker_inflight_requests\{[^}]*\} 1\.0"
            node.wait_for(lambda: re.search(running, node.get("/metrics")[1]) is not None, "the call is in flight")
            os.killpg(node.pid, signal.SIGINT)
            np.testing.assert_array_equal(call.result(LIMIT_SECONDS), np.array([3], np.float32))
        client.close()
        assert node.wait_exit() == 0
    assert "Traceback" not in node.output
    assert "died" not in node.output


def test_a_second_signal_does_not_wait_for_a_long_run(tmp_path: Path) -> None:
    """The run has a minute to go; the node does not."""
    models.write_slow(tmp_path / "models" / "slow", iterations=ENDLESS)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *PAIR) as node, long_run(node.wait_ready()):
        node.signal(signal.SIGTERM)
        node.wait_line("received SIGTERM: draining")
        time.sleep(0.25)  # closer together they are one
        node.signal(signal.SIGTERM)
        assert node.wait_exit(10) == 0
    assert "received SIGTERM again: stopping without waiting" in node.output


def test_the_deadline_ends_a_run_that_does_not(tmp_path: Path) -> None:
    """At the limit the rest is failed and the node exits anyway."""
    models.write_slow(tmp_path / "models" / "slow", iterations=ENDLESS)
    settings = ("--models", str(tmp_path / "models"), *PAIR, "--exit-timeout-secs", "2")
    with start_node(tmp_path, *settings) as node, long_run(node.wait_ready()):
        node.signal(signal.SIGTERM)
        assert node.wait_exit(10) == 0


@pytest.mark.parametrize("moment", ["started worker1", "worker0.*model is ready"], ids=["imports", "loads"])
def test_sigterm_during_the_start_ends_it_at_once(tmp_path: Path, moment: str) -> None:
    """While workers load libraries or models there is nothing to finish: no drain, no death, exit code 0."""
    models.write_add1(tmp_path / "models" / "a-small-one")
    for number in range(4):
        models.write_matmul(tmp_path / "models" / f"big{number}", size=3000)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *PAIR) as node:
        node.wait_line(moment)
        node.signal(signal.SIGTERM)
        assert node.wait_exit(15) == 0
    assert "worker0 is ready" not in node.output
    assert "died" not in node.output
    assert "Traceback" not in node.output


def test_no_worker_outlives_a_parent_killed_during_a_long_run(tmp_path: Path) -> None:
    """In the middle of a native call that has a minute to go; the ports are free again at once."""
    models.write_slow(tmp_path / "models" / "slow", iterations=ENDLESS)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *PAIR) as node, long_run(node.wait_ready()):
        family = child_pids(node.pid)
        assert len(family) == 2
        node.signal(signal.SIGKILL)
        node.process.wait(LIMIT_SECONDS)
        wait_until(lambda: not any(map(is_alive, family)), "the workers are gone", 10)


def test_a_run_past_its_limit_costs_its_caller_and_its_worker(tmp_path: Path) -> None:
    """The caller is answered, the worker replaced, and the node serves on meanwhile."""
    models.write_slow(tmp_path / "models" / "slow", iterations=ENDLESS)
    models.write_simple(tmp_path / "models" / "simple")
    limit = {"INFERENCE_SERVER_SCHEDULER_DISPATCH_TIMEOUT_SECONDS": "1"}
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *PAIR, environment=limit) as node:
        node.wait_ready()
        node.wait_for(lambda: node.output.count("is ready grpc_port") == 2, "both are ready")
        with client_of(node) as client, pytest.raises(triton.InferenceServerException, match="took longer"):
            models.infer_slow(client)
        infer_simple(node, 4)
        node.wait_line("a run has been on its device for more than 6 s")
        node.wait_for(lambda: node.output.count("is ready grpc_port") == 3, "the replacement")
        infer_simple(node, 4)


# --- where its output goes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [">/dev/full 2>&1", ">&- 2>&-", "2>&1 | true"], ids=["full-disk", "closed", "gone"])
def test_an_output_that_takes_nothing_stops_nothing(tmp_path: Path, output: str) -> None:
    """The node serves, restarts a worker, keeps the record of its death, and ends in order."""
    port, metrics = free_ports()
    script = f'("$@"; echo $? >{tmp_path}/code) {output}'
    addresses = ("--grpc-port", port, "--metrics-port", metrics, "--base-port", "0", "--metrics-base-port", "0")
    command = ("/bin/sh", "-c", script, "sh", sys.executable, str(ZIPAPP))
    with start_node(tmp_path, "--demo", *PAIR, *addresses, command=command, ports=False) as node:
        node._found_ports = lambda: [(port, metrics)]  # type: ignore[method-assign] # its log cannot be read
        wait_until(lambda: both_ready(node), "two workers are ready")
        supervisor = below(node.pid, f"{ZIPAPP} serve")
        os.kill(child_pids(supervisor)[0], signal.SIGKILL)
        wait_until(lambda: list(node.runtime_dir.glob("deaths/*")) != [], "the record of the death")
        infer_simple(node)
        wait_until(lambda: both_ready(node), "the worker is back")
        os.kill(supervisor, signal.SIGTERM)
        wait_until((tmp_path / "code").exists, "the end")
        wait_until(lambda: (tmp_path / "code").read_text() == "0\n", "exit code 0")


def both_ready(node: NodeProcess) -> bool:
    """Both workers serve, by the gateway's account."""
    return len(re.findall(r"^gateway_worker_ready\{.*\} 1\.0$", node.get("/metrics")[1], re.MULTILINE)) == 2


def free_ports() -> tuple[str, str]:
    """Two ports that nobody listens on, out of the range from which others are given any free one."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(_server()) for _ in range(2))
        return str(one.getsockname()[1]), str(other.getsockname()[1])


def _server() -> socket.socket:
    while True:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randrange(10_000, 30_000)))  # noqa: S311 - no secret


def below(pid: int, words: str) -> int:
    """The process below a shell whose command line says so."""
    waiting = [pid]
    while waiting:
        candidate = waiting.pop()
        command = Path(f"/proc/{candidate}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if words in command and not command.startswith("/bin/sh"):
            return candidate
        waiting += child_pids(candidate)
    raise AssertionError(f"no process below {pid} is {words}")


def test_in_json_every_line_of_a_life_is_an_object(tmp_path: Path) -> None:
    """Start, a death, a restart, stacks asked for by SIGQUIT, the end: each with time, source, level and message."""
    with start_node(tmp_path, "--demo", *PAIR, environment={"REACTANT_LOG_FORMAT": "json"}) as node:
        wait_until(lambda: len(re.findall('"worker[01] is ready"', node.output)) == 2, "both are ready")
        (pid,) = {event["pid"] for event in events_of(node) if event["message"] == "started worker0"}
        os.kill(int(str(pid)), signal.SIGKILL)
        wait_until(lambda: node.output.count('"started worker0"') == 2, "the restart")
        node.signal(signal.SIGQUIT)
        wait_until(lambda: "thread gateway:" in node.output, "the stacks")
        assert node.stop() == 0
    events = events_of(node)
    assert all({"time", "source", "level", "message"} <= event.keys() for event in events)
    assert {event["source"] for event in events} == {"supervisor", "gateway", "worker0", "worker1"}
    assert events[-1]["message"] == "node stopped"


def events_of(node: NodeProcess) -> list[dict[str, object]]:
    """Its output."""
    return [json.loads(line) for line in node.lines]


def test_in_text_every_line_of_a_life_has_one_prefix(tmp_path: Path) -> None:
    """Whoever speaks; a request that fails and a death included."""
    with start_node(tmp_path, "--demo", *PAIR) as node:
        node.wait_ready().wait_line("worker0 is ready")
        with client_of(node) as client, pytest.raises(triton.InferenceServerException):
            client.infer("nobody", [])
        restart_worker(node)
        node.signal(signal.SIGHUP)
        node.wait_line("received SIGHUP")
        assert node.stop() == 0
    odd = [line for line in node.lines if not re.match(r"\[(supervisor|gateway|worker[01])\] (?!\[)", line)]
    assert odd == []
