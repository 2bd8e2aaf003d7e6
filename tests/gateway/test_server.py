"""The gateway as a component of the parent: over real ports, with workers that come, die and come back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reactant_node.clock import NS_PER_SECOND, MonotonicClock
from reactant_node.config.schema import ListenConfig
from reactant_node.errors import AddressInUse, NodeError, StatusCode, Unavailable, Unimplemented
from reactant_node.gateway.discovery import Discovery
from reactant_node.gateway.server import STALL_SECONDS, GatewayThread
from reactant_node.kserve import metadata
from reactant_node.reports import Ready
from reactant_node.supervisor.spec import Component
from reactant_node.transport.interface import CallContext
from tests.support.gateway_node import WorkerHost, gateway_of, get, ready, wait_for
from tests.support.gateway_workers import ScriptedWorker, entry, infer_request


@pytest.fixture
def host() -> Iterator[WorkerHost]:
    """Where workers and clients live."""
    host = WorkerHost()
    yield host
    host.close()


@contextmanager
def running(*workers: str, **settings: object) -> Iterator[GatewayThread]:
    """A started gateway, stopped afterwards."""
    gateway = gateway_of(*workers, **settings)
    gateway.start()
    try:
        yield gateway
    finally:
        assert gateway.stop(10)


def infer(host: WorkerHost, gateway: GatewayThread, model: str = "m") -> bytes:
    """One inference through the public port."""
    return host.call(gateway.grpc_port, metadata.MODEL_INFER, infer_request(model)).result()


class Held:
    """An inference that waits until a test lets it go."""

    def __init__(self) -> None:
        self.running = threading.Semaphore(0)
        self.go = threading.Event()

    async def infer(self, _: bytes, __: CallContext) -> bytes:
        """Wait."""
        self.running.release()
        while not self.go.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)
        return b"done"

    def wait_until_running(self) -> None:
        """Return once the call has come."""
        assert self.running.acquire(timeout=20)


def test_it_is_a_component() -> None:
    """The supervisor can hold it."""
    component: Component = gateway_of("worker0")
    assert component.name == "gateway"
    assert component.failure(0) is None
    assert component.drained()
    assert component.stop(1)


def test_ready_follows_the_workers_and_every_face_agrees(host: WorkerHost) -> None:
    """Ready with the first worker, not ready when the last is gone, ready again after its restart on another port."""
    with running("worker0", "worker1") as gateway:
        assert get(gateway.metrics_port, "/readyz") == (503, "not ready: no worker is ready\n")
        assert get(gateway.metrics_port, "/healthz") == (200, "ok\n")
        server_ready = host.call(gateway.grpc_port, metadata.SERVER_READY).result()
        assert not metadata.decode_ready(server_ready)
        with pytest.raises(Unavailable, match="no worker can be reached"):
            infer(host, gateway)

        gateway.child_ready("worker0", host.listen(ScriptedWorker("worker0", "m")))
        wait_for(lambda: ready(gateway), "ready")
        assert metadata.decode_ready(host.call(gateway.grpc_port, metadata.SERVER_READY).result())
        assert infer(host, gateway) == b"worker0:" + infer_request("m")
        assert "ready" in repr(gateway)

        host.kill("worker0")
        gateway.child_gone("worker0")
        wait_for(lambda: not ready(gateway), "not ready")
        with pytest.raises(Unavailable):
            infer(host, gateway)

        gateway.child_ready("worker0", host.listen(ScriptedWorker("worker0", "m")))
        wait_for(lambda: ready(gateway), "ready after the restart")
        assert infer(host, gateway).startswith(b"worker0:")


def test_a_worker_killed_in_the_middle_of_a_request_costs_a_failover(host: WorkerHost) -> None:
    """The client sees the other worker's answer, before anybody has told the gateway."""
    held = Held()
    first, second = ScriptedWorker("worker0", "m"), ScriptedWorker("worker1", "m")
    first.infer = held.infer
    with running("worker0", "worker1") as gateway:
        gateway.child_ready("worker0", host.listen(first))
        wait_for(lambda: ready(gateway), "ready")
        gateway.child_ready("worker1", host.listen(second))
        wait_for(lambda: 'gateway_worker_ready{worker="worker1"} 1.0' in metrics(gateway), "worker1")
        call = host.call(gateway.grpc_port, metadata.MODEL_INFER, infer_request("m"))
        held.wait_until_running()
        host.kill("worker0")
        assert call.result(10).startswith(b"worker1:")


def test_errors_keep_their_status_and_words(host: WorkerHost) -> None:
    """Through two hops."""
    worker = ScriptedWorker("worker0", "m")
    worker.rows.append(entry("broken", "UNAVAILABLE", "no such operator"))
    with running("worker0", "worker1") as gateway:
        gateway.child_ready("worker0", host.listen(worker))
        wait_for(lambda: ready(gateway), "ready")
        with pytest.raises(NodeError, match="broken: no such operator") as caught:
            infer(host, gateway, "broken")
        assert caught.value.status is StatusCode.NOT_FOUND
        with pytest.raises(Unimplemented):
            host.call(gateway.grpc_port, "/inference.GRPCInferenceService/ModelStreamInfer").result()


def test_minimal_leaves_questions_unimplemented(host: WorkerHost) -> None:
    """`gateway.rpcs: minimal`."""
    with running("worker0", "worker1", rpcs="minimal") as gateway:
        with pytest.raises(Unimplemented):
            host.call(gateway.grpc_port, metadata.SERVER_READY).result()
        reply = host.call(gateway.grpc_port, metadata.HEALTH_CHECK).result()
        assert reply == metadata.encode_health(serving=False)


def test_a_drain_finishes_what_is_in_flight_and_refuses_the_rest(host: WorkerHost) -> None:
    """/readyz turns first; drained only once the last call is answered."""
    held = Held()
    worker = ScriptedWorker("worker0", "m")
    worker.infer = held.infer
    with running("worker0", "worker1") as gateway:
        gateway.child_ready("worker0", host.listen(worker))
        wait_for(lambda: ready(gateway), "ready")
        assert not gateway.drained()
        call = host.call(gateway.grpc_port, metadata.MODEL_INFER, infer_request("m"))
        held.wait_until_running()
        gateway.begin_drain()
        assert get(gateway.metrics_port, "/readyz") == (503, "not ready: draining\n")
        wait_for(lambda: is_refused(host, gateway), "new calls are refused")
        assert not gateway.drained()
        held.go.set()
        assert call.result(10) == b"done"
        wait_for(gateway.drained, "drained")


def is_refused(host: WorkerHost, gateway: GatewayThread) -> bool:
    """A new call is UNAVAILABLE."""
    try:
        host.call(gateway.grpc_port, metadata.SERVER_LIVE).result()
    except Unavailable:
        return True
    return False


def test_stop_ends_calls_in_flight_as_unavailable(host: WorkerHost) -> None:
    """Nobody is left hanging."""
    held = Held()
    worker = ScriptedWorker("worker0", "m")
    worker.infer = held.infer
    gateway = gateway_of("worker0", "worker1")
    gateway.start()
    gateway.child_ready("worker0", host.listen(worker))
    wait_for(lambda: ready(gateway), "ready")
    call = host.call(gateway.grpc_port, metadata.MODEL_INFER, infer_request("m"))
    held.wait_until_running()
    assert gateway.stop(10)
    with pytest.raises(Unavailable):
        call.result(10)
    held.go.set()
    assert "stopped" in repr(gateway)


def test_it_starts_again_on_the_same_ports_and_remembers_its_workers(host: WorkerHost) -> None:
    """A restart of the component needs no news from the supervisor, and counters go on."""
    gateway = gateway_of("worker0", "worker1")
    gateway.start()
    ports = gateway.grpc_port, gateway.metrics_port
    gateway.child_ready("worker0", host.listen(ScriptedWorker("worker0", "m")))
    wait_for(lambda: ready(gateway), "ready")
    infer(host, gateway)
    assert gateway.stop(10)
    gateway.start()
    assert (gateway.grpc_port, gateway.metrics_port) == ports
    wait_for(lambda: ready(gateway), "ready again")
    infer(host, gateway)
    assert 'gateway_requests_total{model="m",rpc="ModelInfer",status="OK"} 2.0' in metrics(gateway)
    assert gateway.stop(10)


def test_workers_that_report_before_the_start_are_known_after_it(host: WorkerHost) -> None:
    """The order of start and news does not matter."""
    gateway = gateway_of("worker0", "worker1")
    gateway.child_ready("worker0", host.listen(ScriptedWorker("worker0", "m")))
    gateway.child_ready("worker1", Ready(1, 0))
    gateway.child_gone("worker1")
    gateway.start()
    wait_for(lambda: ready(gateway), "ready")
    assert gateway.stop(10)


@pytest.mark.parametrize("which", ["grpc", "metrics"])
def test_a_taken_port_fails_the_start_and_leaves_nothing(which: str) -> None:
    """AddressInUse in the supervisor's thread; the other port is free again and no thread is left."""
    with running("worker0", "worker1") as first:
        ports = {"grpc": 0, "metrics": 0, which: getattr(first, f"{which}_port")}
        listen = ListenConfig("127.0.0.1", ports["grpc"], "127.0.0.1", ports["metrics"])
        second = gateway_of("worker0", "worker1", listen=listen)
        threads = threading.active_count()
        with pytest.raises(AddressInUse, match=str(ports[which])):
            second.start()
        wait_for(lambda: threading.active_count() <= threads, "its threads end")
        assert second.stop(1)


def test_a_loop_that_does_not_turn_is_a_failure() -> None:
    """Only when it was seen silent twice: a parent that was frozen gives its loop time to turn."""
    with running("worker0", "worker1") as gateway:
        now_ns = MonotonicClock().now_ns()
        late_ns = now_ns + round((STALL_SECONDS + 1) * NS_PER_SECOND)
        assert gateway.failure(now_ns) is None
        assert gateway.failure(late_ns) is None
        assert gateway.failure(now_ns) is None
        assert gateway.failure(late_ns) is None
        assert "its loop has not turned for 1" in str(gateway.failure(late_ns + 2 * NS_PER_SECOND))


def test_a_wedged_loop_is_abandoned_when_its_time_is_over() -> None:
    """`stop` returns in time and says so; the admin port is free."""
    gateway = gateway_of("worker0", "worker1")
    gateway.start()
    blocked, go_on = threading.Event(), threading.Event()

    def wedge() -> None:
        blocked.set()
        go_on.wait(20)

    run = gateway._run
    assert run is not None
    run._call_soon(wedge)
    assert blocked.wait(20)
    began = time.monotonic()
    assert not gateway.stop(0.1)
    assert time.monotonic() - began < 10
    go_on.set()
    wait_for(lambda: not run.alive, "the thread ends after all")


def test_a_part_that_fails_ends_the_thread_and_a_restart_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is told to the supervisor, and /readyz does not lie meanwhile."""

    async def fail(_: Discovery) -> None:
        raise RuntimeError("no more probes")

    gateway = gateway_of("worker0", "worker1")
    with monkeypatch.context() as patched:
        patched.setattr(Discovery, "run", fail)
        gateway.start()
        wait_for(lambda: gateway.failure(0) is not None, "the failure is seen")
    assert gateway.failure(0) == "its thread ended: no more probes"
    assert get(gateway.metrics_port, "/readyz") == (503, "not ready: the gateway is not running\n")
    gateway.child_gone("worker0")
    assert gateway.drained()
    assert gateway.stop(10)
    gateway.start()
    assert gateway.failure(MonotonicClock().now_ns()) is None
    assert gateway.stop(10)


def metrics(gateway: GatewayThread) -> str:
    """The node's exposition."""
    status, text = get(gateway.metrics_port, "/metrics")
    assert status == 200
    return text


def test_metrics_are_the_nodes(host: WorkerHost) -> None:
    """Both workers' series and the gateway's in one valid exposition; a dead worker costs one gauge."""
    with running("worker0", "worker1") as gateway:
        for name in ("worker0", "worker1"):
            gateway.child_ready(name, host.listen(ScriptedWorker(name, "m")))
        wait_for(lambda: 'gateway_worker_ready{worker="worker1"} 1.0' in metrics(gateway), "both")
        for _ in range(4):
            infer(host, gateway)
        text = metrics(gateway)
        families = {metric.name: metric for metric in text_string_to_metric_families(text)}
        assert {sample.value for sample in families["worker_requests"].samples} == {2}
        assert {sample.value for sample in families["gateway_worker_metrics_up"].samples} == {1}
        assert 'supervisor_child_restarts_total{child="worker0"} 2.0' in text
        assert 'process_resident_memory_bytes{worker="supervisor"}' in text
        host.kill("worker1")
        assert 'gateway_worker_metrics_up{worker="worker1"} 0.0' in metrics(gateway)
        gateway.child_gone("worker1")
        text = metrics(gateway)
        assert 'gateway_worker_metrics_up{worker="worker1"} 0.0' in text
        assert 'worker_requests_total{model="m",status="OK",worker="worker0"} 2.0' in text


def test_a_worker_without_a_metrics_port_is_no_failed_scrape(host: WorkerHost) -> None:
    """It has no gauge instead of a lasting zero."""
    with running("worker0", "worker1") as gateway:
        grpc_port = host.listen(ScriptedWorker("worker0", "m")).grpc_port
        gateway.child_ready("worker0", Ready(grpc_port, 0))
        assert 'gateway_worker_metrics_up{worker="worker0"}' not in metrics(gateway)


def test_role_gateway_dials_its_configured_workers(host: WorkerHost) -> None:
    """Static endpoints under the operator's names, metrics included; nobody reports them."""
    reports = [host.listen(ScriptedWorker(name, "m")) for name in ("worker0", "worker1")]
    settings = {
        "endpoints": tuple(f"127.0.0.1:{report.grpc_port}" for report in reports),
        "metrics_endpoints": tuple(f"127.0.0.1:{report.metrics_port}" for report in reports),
        "worker_names": ("left", "right"),
    }
    with running(**settings) as gateway:
        wait_for(lambda: 'gateway_worker_ready{worker="right"} 1.0' in metrics(gateway), "both")
        assert {infer(host, gateway).partition(b":")[0] for _ in range(2)} == {b"worker0", b"worker1"}
        assert 'worker_requests_total{model="m",status="OK",worker="left"} 1.0' in metrics(gateway)


def test_the_page_shows_workers_and_models(host: WorkerHost) -> None:
    """Name, role, states and reasons."""
    worker = ScriptedWorker("worker0", "m")
    worker.rows.append(entry("broken", "UNAVAILABLE", "no such operator"))
    with running("worker0", "worker1") as gateway:
        gateway.child_ready("worker0", host.listen(worker))
        wait_for(lambda: ready(gateway), "ready")
        page = get(gateway.metrics_port, "/")[1]
        for text in ("role all", "<td>worker0</td><td>ready</td>", "<td>worker1</td><td>does not answer</td>"):
            assert text in page
        assert "<td>broken</td><td>1</td><td>UNAVAILABLE</td><td>no such operator</td>" in page
