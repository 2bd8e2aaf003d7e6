"""`plan` says what would run, how it was found, and where each setting came from."""

from __future__ import annotations

import pytest

from reactant_node.config.schema import Backend
from reactant_node.launch import LaunchPlan
from reactant_node.overview import render_plan
from reactant_node.supervisor.cpus import UsableCpus
from reactant_node.supervisor.devices import Detection, DetectionStep
from tests.support.config_nodes import Loader, loader, make_host

__all__ = ["loader"]

CPUS = UsableCpus(8, "cgroup quota of 8 CPUs")


def test_a_node_of_two_devices(loader: Loader) -> None:
    """Every part has its line: files, variables, devices and each step, workers, threads, gateway, notes."""
    environ = {"REACTANT_GATEWAY_LISTEN_METRICS": "[::1]:9002", "INFERENCE_SERVER_CACHE_DIR": "/c"}
    node = loader.load(
        "model_repo: MODELS\nworkers: [{name: left, gpu: 1}, {name: right, gpu: 0}]",
        environ,
        facts=make_host("0", "GPU-x", stated=True),
        backend="cpu",
    )
    steps = (DetectionStep("REACTANT_GPUS", "not set"), DetectionStep("gpus", "2: 0, GPU-x"))
    plan = LaunchPlan(node, Detection(("0", "GPU-x"), "gpus", stated=True, steps=steps), CPUS)
    assert render_plan(plan) == (
        "role     all\n"
        f"files    {loader.folder}/node.yaml\n"
        "set by   INFERENCE_SERVER_CACHE_DIR, REACTANT_GATEWAY_LISTEN_METRICS\n"
        "devices  0, GPU-x\n"
        "         REACTANT_GPUS: not set\n"
        "         gpus: 2: 0, GPU-x\n"
        f"models   {loader.models}\n"
        "workers\n"
        "         name   device  backend  gRPC            metrics         threads\n"
        "         left   GPU-x   cpu      127.0.0.1:8080  127.0.0.1:9100  4\n"
        "         right  0       cpu      127.0.0.1:8081  127.0.0.1:9101  4\n"
        "threads  worker compute threads: 4 (cgroup quota of 8 CPUs shared by 2 workers)\n"
        "gateway  gRPC 0.0.0.0:8001, metrics [::1]:9002\n"
        "note     INFERENCE_SERVER_CACHE_DIR: '/c' is accepted and has no effect in this version\n"
    )


def test_a_sole_worker_has_the_public_ports(loader: Loader) -> None:
    """There is no gateway, and the table says where the worker listens."""
    node = loader.load(None, models=(str(loader.models),), grpc_port="7001")
    text = render_plan(LaunchPlan(node, Detection((), "NVML", stated=False, steps=()), CPUS))
    assert "files    none: the built-in default\n" in text
    assert "set by" not in text
    assert "devices  none\n" in text
    assert "worker0  cpu     cpu      0.0.0.0:7001  0.0.0.0:8002  8\n" in text
    assert "(cgroup quota of 8 CPUs shared by 1 worker)\n" in text
    assert text.endswith("gateway  none: the sole worker takes the public ports\n")


def test_workers_alone(loader: Loader) -> None:
    """Role workers has no gateway, and each worker faces the network."""
    environ = {"REACTANT_WORKER_THREADS": "3"}
    node = loader.load(environ=environ, role="workers", facts=make_host("0", backend=Backend.CUDA))
    text = render_plan(LaunchPlan(node, Detection(("0",), "NVML", stated=False, steps=()), CPUS))
    assert "worker0  0       cuda     0.0.0.0:8080  0.0.0.0:9100  3\n" in text
    assert "threads  worker compute threads: 3 (REACTANT_WORKER_THREADS)\n" in text
    assert text.endswith("gateway  none: role workers\n")


@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ({}, ("worker  gRPC  metrics", "a:1     a:1   not asked", "b:1     b:1   not asked")),
        (
            {"REACTANT_GATEWAY_WORKER_NAMES": "x,y", "REACTANT_GATEWAY_WORKER_METRICS": "a:2,b:2"},
            ("worker  gRPC  metrics", "x       a:1   a:2", "y       b:1   b:2"),
        ),
    ],
)
def test_a_gateway_alone(loader: Loader, more: dict[str, str], rows: tuple[str, ...]) -> None:
    """Role gateway has no devices and no models; its workers are those it was told of."""
    node = loader.load(None, {"REACTANT_GATEWAY_WORKERS": "a:1,b:1", **more}, role="gateway")
    text = render_plan(LaunchPlan(node, None, CPUS))
    lines = ("gateway  gRPC 0.0.0.0:8001, metrics 0.0.0.0:8002", *(f"         {row}" for row in rows))
    assert text.endswith("\n".join(lines) + "\n")
    assert "devices" not in text
    assert "models" not in text
