"""The composition root: options and environment → devices → configuration → child specs → gateway → supervisor.

The actors meet here and nowhere else. Everything that can be found wrong is found before anything is spawned: the
configuration, what has to be installed, the ports.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reactant_node import __version__
from reactant_node.clock import MonotonicClock
from reactant_node.config.loader import Devices, Host, load_node
from reactant_node.config.options import Options
from reactant_node.config.runtime_dir import RuntimeDir, claim_runtime_dir, write_node_file
from reactant_node.config.schema import Backend, GpuSetting, NodeConfig, Role, WorkerConfig
from reactant_node.errors import AddressInUse, ConfigError, ExitCode
from reactant_node.gateway.server import GatewayThread
from reactant_node.runtime.availability import find_installation, missing_cuda_library, missing_package
from reactant_node.supervisor.cpus import UsableCpus, usable_cpus
from reactant_node.supervisor.devices import Detection, detect
from reactant_node.supervisor.shutdown import DRAIN_SHARE
from reactant_node.supervisor.sink import Sink, SinkHandler
from reactant_node.supervisor.spec import ChildSpec
from reactant_node.supervisor.supervisor import Supervisor
from reactant_node.telemetry import logs
from reactant_node.transport.addresses import check_free
from reactant_node.transport.grpcio import GrpcTransport
from reactant_node.transport.interface import Address
from reactant_node.worker import entry

FLUSH_SECONDS = 2.0
"""For the last log lines, at the end, when whoever reads them is slow."""

RUN_LIMIT_SLACK_SECONDS = 5.0
"""On top of `dispatch_timeout_seconds`: the worker answers the callers of the run first, then it is replaced."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What would run.

    Attributes:
        node: the materialized configuration.
        detection: the devices and how they were found; None in role `gateway`.
        cpus: what the threads were counted from.
    """

    node: NodeConfig
    detection: Detection | None
    cpus: UsableCpus


def make_plan(options: Options, environ: Mapping[str, str]) -> LaunchPlan:
    """Read everything, detect devices, place workers; start nothing.

    Raises:
        ConfigError: with every problem found.
    """
    cpus = usable_cpus()
    seen: list[Detection] = []

    def detect_devices(gpus: GpuSetting) -> Devices:
        seen.append(detect(environ, gpus))
        return Devices(seen[-1].devices, seen[-1].reason, seen[-1].stated, seen[-1].doubt)

    backend = Backend.CUDA if find_installation().has_cuda_provider else Backend.CPU
    node = load_node(options, environ, Host(cpus.count, backend, detect_devices))
    return LaunchPlan(node, seen[-1] if seen else None, cpus)


def serve(plan: LaunchPlan) -> ExitCode:
    """Run the node until it is told to stop.

    Raises:
        ConfigError: something that the role needs is not installed, or the run-time folder cannot be used.
        AddressInUse: a port is taken; nothing was started.
    """
    node = plan.node
    check_needs(node)
    for address, setting in listen_addresses(node):
        _check_port(address, setting)
    sink = _open_sink(node.log_format)
    try:
        with claim_runtime_dir(node.runtime_dir) as runtime_dir:
            return _supervise(plan, runtime_dir, sink)
    finally:
        sink.close(FLUSH_SECONDS)


def _open_sink(log_format: str) -> Sink:
    for number in (0, 1, 2):  # a closed one would be given to the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sink = Sink(os.dup(1))
    logs.configure(log_format, source="supervisor", handler=SinkHandler(sink, log_format))
    return sink


def _supervise(plan: LaunchPlan, runtime_dir: RuntimeDir, sink: Sink) -> ExitCode:
    node = plan.node
    _announce(plan, write_node_file(runtime_dir.path, node), runtime_dir.note)
    clock = MonotonicClock()
    supervisor = Supervisor(
        [_child_spec(node, worker) for worker in node.workers],
        node.supervisor,
        clock=clock,
        sink=sink,
        log_format=node.log_format,
        runtime_dir=runtime_dir.path,
        workspace_root=node.workspace_root,
    )
    if node.gateway is None:
        return supervisor.run()
    names = [worker.name for worker in node.workers]
    gateway = GatewayThread(node.gateway, GrpcTransport, clock, workers=names, restarts=supervisor.restarts)
    return supervisor.run(gateway)


def _child_spec(node: NodeConfig, worker: WorkerConfig) -> ChildSpec:
    # CUDA counts by speed unless told otherwise, while NVML and nvidia-smi count by bus: an ordinal must mean one GPU.
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    limit = worker.scheduler.dispatch_timeout_seconds
    return ChildSpec(
        name=worker.name,
        target=entry.main,
        args=(worker, node.log_format, node.supervisor.exit_timeout_seconds * DRAIN_SHARE),
        environment={
            "REACTANT_WORKER_NAME": worker.name,
            "CUDA_VISIBLE_DEVICES": worker.device,
            "CUDA_DEVICE_ORDER": order,
        },
        run_limit_seconds=limit + RUN_LIMIT_SLACK_SECONDS if limit else 0.0,
    )


def _announce(plan: LaunchPlan, node_file: Path, folder_note: str) -> None:
    node = plan.node
    children = [worker.name for worker in node.workers] + (["gateway"] if node.gateway else [])
    _log.info("reactant-node %s", __version__, extra={"role": str(node.role), "children": ", ".join(children)})
    _log.info("the materialized node file is %s", node_file)
    if node.workers:
        _log.info("%s", threads_line(plan))
    if node.overrides:
        _log.info("the environment overrides: %s", ", ".join(node.overrides))
    for note in filter(None, (folder_note, *node.notes)):
        _log.warning("%s", note)


def threads_line(plan: LaunchPlan) -> str:
    """`worker compute threads: 2 (…)`: how many, and where the number came from."""
    counts = sorted({worker.threads for worker in plan.node.workers})
    many = len(plan.node.workers)
    shared = f"{plan.cpus.origin} shared by {many} worker{'s' if many > 1 else ''}"
    return f"worker compute threads: {', '.join(map(str, counts))} ({plan.node.threads_origin or shared})"


def check_needs(node: NodeConfig) -> None:
    """See that what the role needs is installed: workers need ONNX Runtime, with its CUDA provider on a CUDA node.

    Raises:
        ConfigError: names the package to add, or the CUDA library that cannot be loaded.
    """
    if node.role is Role.GATEWAY:
        return
    runtimes = [worker.runtime for worker in node.workers]
    cuda = any(runtime.backend is Backend.CUDA for runtime in runtimes)
    fallback = all(runtime.allow_cpu_fallback for runtime in runtimes)
    if missing := missing_package(cuda=cuda and not fallback):
        raise ConfigError(missing)
    if cuda and not fallback and (library := missing_cuda_library()):
        raise ConfigError(
            f"runtime.backend: got cuda, and the CUDA provider cannot be loaded: {library}; install the CUDA 13 and "
            "cuDNN 9 libraries (or PyPI's nvidia-* wheels), or set runtime.allow_cpu_fallback: true or the backend cpu"
        )


def listen_addresses(node: NodeConfig) -> Iterator[tuple[Address, str]]:
    """Every address the node will listen on, with the setting it comes from."""
    for worker in node.workers:
        endpoints = worker.endpoints
        yield Address(endpoints.host, endpoints.port), f"workers.{worker.name}.port"
        yield Address(endpoints.metrics_host, endpoints.metrics_port), f"workers.{worker.name}.metrics_port"
    if node.gateway is not None:
        listen = node.listen
        yield Address(listen.grpc_host, listen.grpc_port), "listen.grpc"
        yield Address(listen.metrics_host, listen.metrics_port), "listen.metrics"


def _check_port(address: Address, setting: str) -> None:
    try:
        check_free(address)
    except (AddressInUse, ConfigError) as error:
        raise type(error)(f"{setting}: {error}") from error
