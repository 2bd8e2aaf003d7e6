"""The built zipapp as a node: real processes, real signals, an unmodified tritonclient."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tritonclient import grpc as triton

from tests.support import models
from tests.support.node import LIMIT_SECONDS, ZIPAPP, NodeProcess, child_pids, is_alive, start_node, wait_until

pytestmark = pytest.mark.artifact

CPU_PAIR = ("--backend", "cpu", "--workers", "2")
CPU_SINGLE = ("--backend", "cpu", "--workers", "1")


@contextmanager
def client_of(node: NodeProcess) -> Iterator[triton.InferenceServerClient]:
    """A tritonclient of the node."""
    client = triton.InferenceServerClient(node.grpc_target)
    try:
        yield client
    finally:
        client.close()


def infer_simple(client: triton.InferenceServerClient, number: int, timeout: float = LIMIT_SECONDS) -> None:
    """One call of `simple` with its own numbers, its answer checked."""
    left = np.full((1, 16), number, dtype=np.int32)
    right = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(left)
    inputs[1].set_data_from_numpy(right)
    reply = client.infer("simple", inputs, request_id=str(number), client_timeout=timeout)
    assert reply.get_response().id == str(number)
    np.testing.assert_array_equal(reply.as_numpy("OUTPUT0"), left + right)
    np.testing.assert_array_equal(reply.as_numpy("OUTPUT1"), left - right)


def infer_queued(client: triton.InferenceServerClient, _: int) -> None:
    """One call of `slow`, its answer checked by the helper."""
    models.infer_slow(client)


class Load:
    """Callers in a closed loop; every outcome is kept with the time at which its call began."""

    def __init__(
        self,
        node: NodeProcess,
        callers: int,
        call: Callable[[triton.InferenceServerClient, int], None] = infer_simple,
    ) -> None:
        self._target = node.grpc_target
        self._call = call
        self._stop = threading.Event()
        self._callers = callers
        self._pool = ThreadPoolExecutor(callers)
        self.outcomes: list[tuple[float, float, str]] = []

    def __enter__(self) -> Self:
        for caller in range(self._callers):
            self._pool.submit(self._run, caller)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def succeeded(self) -> int:
        """Calls answered right so far."""
        return sum(outcome == "OK" for _, _, outcome in list(self.outcomes))

    def _run(self, caller: int) -> None:
        client = triton.InferenceServerClient(self._target)
        number = caller * 1_000_000
        while not self._stop.is_set():
            number += 1
            began = time.monotonic()
            try:
                self._call(client, number)
                outcome = "OK"
            except triton.InferenceServerException as error:
                outcome = f"{error.status()}: {error.message()}"
            except AssertionError as error:
                outcome = f"WRONG ANSWER: {error}"
            self.outcomes.append((began, time.monotonic(), outcome))
            if outcome != "OK":
                time.sleep(0.01)
        client.close()


@pytest.mark.parametrize("workers", [CPU_SINGLE, CPU_PAIR], ids=["one-worker", "two-workers"])
def test_a_stock_client_lists_describes_and_runs_the_demo_models(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """The same client code meets the same node whether there is one worker or two."""
    with start_node(tmp_path, "--demo", *workers) as node, client_of(node.wait_ready()) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("simple")
        assert client.is_model_ready("simple", "1")
        assert not client.is_model_ready("nobody")
        index = {model.name: model.state for model in client.get_model_repository_index().models}
        assert index == {"digits": "READY", "simple": "READY"}
        metadata = client.get_model_metadata("simple")
        assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs] == [
            ("INPUT0", "INT32", [-1, 16]),
            ("INPUT1", "INT32", [-1, 16]),
        ]
        assert list(metadata.versions) == ["1"]
        for number in range(10):
            infer_simple(client, number)
        with pytest.raises(triton.InferenceServerException, match="unknown model 'nobody'") as raised:
            client.infer("nobody", [])
        assert raised.value.status() == "StatusCode.NOT_FOUND"
        assert node.get("/healthz")[0] == 200
        families = {family.name for family in text_string_to_metric_families(node.get("/metrics")[1])}
        assert {"worker_requests", "worker_request_latency_seconds", "worker_models_loaded"} <= families
        assert node.stop() == 0
    assert not [line for line in node.lines if "Traceback" in line]


def test_the_materialized_node_file_is_private_and_loads_again(tmp_path: Path) -> None:
    """What really runs is written to the run-time folder, readable by its owner alone, and is itself a node file."""
    with start_node(tmp_path, "--demo", *CPU_PAIR) as node:
        node.wait_ready()
        path = node.runtime_dir / "node.yaml"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        document = yaml.safe_load(path.read_text())
        assert [worker["name"] for worker in document["workers"]] == ["worker0", "worker1"]
        node.stop()
        copy = tmp_path / "again.yaml"
        shutil.copy(path, copy)
        with start_node(tmp_path, "--config", str(copy)) as again:
            again.wait_ready()
            assert again.stop() == 0


def test_children_of_a_cpu_node_see_no_gpu(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES is set empty for a CPU worker and never inherited."""
    with start_node(tmp_path, "--demo", *CPU_PAIR, environment={"CUDA_VISIBLE_DEVICES": ""}) as node:
        node.wait_ready()
        for name in ("worker0", "worker1"):
            environment = Path(f"/proc/{node.worker_pid(name)}/environ").read_bytes().split(b"\0")
            assert b"CUDA_VISIBLE_DEVICES=" in environment


def test_a_worker_killed_under_load_costs_at_most_unavailable_and_comes_back(tmp_path: Path) -> None:
    """After kill -9 of a worker no call hangs or is answered wrong, the other worker serves, and it is restarted."""
    with start_node(tmp_path, "--demo", *CPU_PAIR) as node, Load(node.wait_ready(), callers=8) as load:
        wait_until(lambda: load.succeeded() > 200, "calls before the kill")
        victim = node.worker_pid("worker0")
        os.kill(victim, signal.SIGKILL)
        node.wait_line(r"worker0.*(SIGKILL|signal 9)")
        before = load.succeeded()
        node.wait_for(lambda: load.succeeded() > before + 200, "calls served by the worker that is left")
        node.wait_for(lambda: node.worker_pid("worker0") != victim, "the restart")
        node.wait_for(lambda: 'gateway_worker_ready{worker="worker0"} 1.0' in node.get("/metrics")[1], "both ready")
        after = load.succeeded()
        node.wait_for(lambda: load.succeeded() > after + 200, "calls after the restart")
    wrong = [outcome for _, _, outcome in load.outcomes if outcome != "OK" and "UNAVAILABLE" not in outcome]
    assert not wrong
    assert max(ended - began for began, ended, _ in load.outcomes) < 10


def test_readyz_turns_503_when_no_worker_is_left_and_200_again_after_the_restart(tmp_path: Path) -> None:
    """Readiness follows the workers, liveness the node."""
    with start_node(tmp_path, "--demo", *CPU_PAIR) as node:
        node.wait_ready()
        for name in ("worker0", "worker1"):
            os.kill(node.worker_pid(name), signal.SIGKILL)
        node.wait_for(lambda: node.get("/readyz")[0] == 503, "/readyz 503")
        assert node.get("/healthz")[0] == 200
        node.wait_ready()
        with client_of(node) as client:
            infer_simple(client, 1)


@pytest.mark.parametrize("workers", [CPU_SINGLE, CPU_PAIR], ids=["one-worker", "two-workers"])
def test_a_stopped_worker_is_found_and_replaced(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """A worker that no longer moves (SIGSTOP) is noticed by its silence, killed and started anew."""
    with start_node(
        tmp_path, "--demo", *workers, environment={"REACTANT_SUPERVISOR_HEARTBEAT_TIMEOUT_SECONDS": "2"}
    ) as node:
        node.wait_ready().wait_line("worker0 is ready")
        stopped = node.worker_pid()
        os.kill(stopped, signal.SIGSTOP)
        node.wait_for(lambda: node.worker_pid() != stopped, "the replacement")
        node.wait_ready()
        with client_of(node) as client:
            infer_simple(client, 1)


@pytest.mark.parametrize("workers", [CPU_SINGLE, CPU_PAIR], ids=["one-worker", "two-workers"])
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """After kill -9 of the parent every process it started is gone, and a fresh start works at once."""
    with start_node(tmp_path, "--demo", *workers) as node, Load(node.wait_ready(), callers=4) as load:
        wait_until(lambda: load.succeeded() > 50, "calls before the kill")
        family = child_pids(node.pid)
        assert len(family) >= 1
        node.signal(signal.SIGKILL)
        node.process.wait(LIMIT_SECONDS)
        wait_until(lambda: not any(is_alive(pid) for pid in family), "the children are gone", 10)
    with start_node(tmp_path, "--demo", *workers) as again:
        again.wait_ready()


@pytest.mark.parametrize("workers", [CPU_SINGLE, CPU_PAIR], ids=["one-worker", "two-workers"])
def test_sigterm_under_load_loses_no_accepted_request(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Calls that the node has, queued ones included, are answered right; later ones are UNAVAILABLE; exit code 0.

    Each run takes long enough for most calls to wait in the queue, so that a call begun well before the signal has
    been accepted, and is answered well after it.
    """
    models.write_slow(tmp_path / "models" / "slow", iterations=40_000)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *workers) as node:
        with Load(node.wait_ready(), callers=16, call=infer_queued) as load:
            node.wait_for(lambda: load.succeeded() > 50, "calls before the signal")
            signalled = time.monotonic()
            node.signal(signal.SIGTERM)
            assert node.wait_exit() == 0
        accepted = [outcome for outcome in load.outcomes if outcome[0] < signalled - 0.25 and outcome[1] > signalled]
        assert len(accepted) >= 4
        assert [outcome for _, _, outcome in accepted if outcome != "OK"] == []
        refused = [outcome for _, _, outcome in load.outcomes if outcome != "OK"]
        assert [outcome for outcome in refused if "UNAVAILABLE" not in outcome] == []
        assert not [line for line in node.lines if "Traceback" in line or "SIGKILL" in line]


@pytest.mark.parametrize("workers", [CPU_SINGLE, CPU_PAIR], ids=["one-worker", "two-workers"])
def test_sigterm_waits_for_a_long_run_and_turns_unready_first(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """A run that is on the device when the signal comes is finished and answered; readiness is gone meanwhile."""
    models.write_slow(tmp_path / "models" / "slow", iterations=4_000_000)
    with start_node(tmp_path, "--models", str(tmp_path / "models"), *workers) as node:
        client = triton.InferenceServerClient(node.wait_ready().grpc_target)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(models.infer_slow, client)
            running = r"worker_inflight_requests\{[^}]*\} 1\.0"
            node.wait_for(lambda: re.search(running, node.get("/metrics")[1]) is not None, "the call is in flight")
            node.signal(signal.SIGTERM)
            node.wait_for(lambda: node.get("/readyz")[0] == 503, "/readyz 503")
            assert not call.done()
            call.result(LIMIT_SECONDS)
        client.close()
        assert node.wait_exit() == 0


def test_a_second_node_on_the_same_ports_does_not_start_and_takes_no_request(tmp_path: Path) -> None:
    """The second instance exits at once, non-zero, naming the port; the first goes on alone."""
    with start_node(tmp_path / "a", "--demo", *CPU_SINGLE) as first:
        port = first.wait_ready().grpc_target.rpartition(":")[2]
        with start_node(tmp_path / "b", "--demo", *CPU_SINGLE, "--grpc-port", port, "--metrics-port", "0") as second:
            assert second.wait_exit() == 1
            assert port in second.output
            assert "Traceback" not in second.output
        with client_of(first) as client:
            infer_simple(client, 1)


def test_a_port_that_another_program_holds_is_named(tmp_path: Path) -> None:
    """The same for the metrics port and any other program."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start_node(
            tmp_path, "--demo", *CPU_SINGLE, "--grpc-port", "0", "--metrics-port", str(port), ports=False
        ) as node:
            assert node.wait_exit() == 1
            assert str(port) in node.output


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_workers_are_restarted_after_the_file_is_gone_or_another(tmp_path: Path, change: str) -> None:
    """A worker restarted later still comes from what the parent runs."""
    file = tmp_path / "node.pyz"
    shutil.copy(ZIPAPP, file)
    with start_node(tmp_path, "--demo", *CPU_PAIR, command=(sys.executable, str(file))) as node:
        first = node.wait_ready().worker_pid()
        if change == "deleted":
            file.unlink()
        else:
            file.write_bytes(b"not a zip file at all")
        os.kill(first, signal.SIGKILL)
        node.wait_for(lambda: node.worker_pid() != first, "the restart")
        node.wait_for(lambda: 'gateway_worker_ready{worker="worker0"} 1.0' in node.get("/metrics")[1], "both ready")
        with client_of(node) as client:
            for number in range(8):
                infer_simple(client, number)
        assert node.stop() == 0


def test_a_broken_model_never_takes_the_others_down(tmp_path: Path) -> None:
    """It is listed UNAVAILABLE with its reason, logged once, and a request for it is NOT_FOUND with the reason."""
    repository = tmp_path / "models"
    models.write_add1(repository / "add1")
    (repository / "broken").mkdir()
    (repository / "broken" / "model.onnx").write_bytes(b"this is no protobuf")
    with start_node(tmp_path, "--models", str(repository), *CPU_PAIR) as node, client_of(node.wait_ready()) as client:
        index = {model.name: model for model in client.get_model_repository_index().models}
        assert index["add1"].state == "READY"
        assert index["broken"].state == "UNAVAILABLE"
        assert index["broken"].reason
        assert not client.is_model_ready("broken")
        with pytest.raises(triton.InferenceServerException) as raised:
            client.infer("broken", [])
        assert raised.value.status() == "StatusCode.NOT_FOUND"
        assert index["broken"].reason in raised.value.message()


def test_a_wrong_configuration_names_everything_at_once_and_exits_78(tmp_path: Path) -> None:
    """No traceback, no restart loop: every problem in one go."""
    config = tmp_path / "node.yaml"
    config.write_text("model_repo: /nonexistent\nbase_prot: 8080\nglobal:\n  scheduler:\n    discipline: lifo\n")
    with start_node(tmp_path, "--config", str(config)) as node:
        assert node.wait_exit() == 78
    assert "base_prot" in node.output
    assert "lifo" in node.output
    assert "/nonexistent" in node.output
    assert "Traceback" not in node.output
