"""What would run, as text: the `plan` command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reactant_node.config.schema import GatewayConfig, NodeConfig, Role
from reactant_node.launch import LaunchPlan, threads_line
from reactant_node.supervisor.devices import Detection
from reactant_node.transport.interface import Address

INDENT = " " * 9


def render_plan(plan: LaunchPlan) -> str:
    """Role, files, devices and how they were found, workers, ports, threads, notes."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: LaunchPlan) -> Iterator[str]:
    node = plan.node
    yield f"role     {node.role}"
    yield "files    " + (", ".join(node.files) or "none: the built-in default")
    if node.overrides:
        yield "set by   " + ", ".join(node.overrides)
    if plan.detection is not None:
        yield from _devices(plan.detection)
    if node.workers:
        yield "models   " + ", ".join(node.workers[0].model_dirs)
        yield "workers"
        yield from _table(_worker_rows(node))
        yield f"threads  {threads_line(plan)}"
    yield from _gateway(node)
    yield from (f"note     {note}" for note in node.notes)


def _devices(detection: Detection) -> Iterator[str]:
    yield "devices  " + (", ".join(detection.devices) or "none")
    yield from (f"{INDENT}{step.source}: {step.answer}" for step in detection.steps)


def _gateway(node: NodeConfig) -> Iterator[str]:
    if node.gateway is None:
        reason = "role workers" if node.role is Role.WORKERS else "the sole worker takes the public ports"
        yield f"gateway  none: {reason}"
        return
    listen = node.listen
    grpc, metrics = Address(listen.grpc_host, listen.grpc_port), Address(listen.metrics_host, listen.metrics_port)
    yield f"gateway  gRPC {grpc}, metrics {metrics}"
    if node.role is Role.GATEWAY:
        yield from _table(_endpoint_rows(node.gateway))


def _endpoint_rows(gateway: GatewayConfig) -> Iterator[tuple[str, ...]]:
    yield "worker", "gRPC", "metrics"
    names = gateway.worker_names or gateway.endpoints
    metrics = gateway.metrics_endpoints or ("not asked",) * len(names)
    yield from zip(names, gateway.endpoints, metrics, strict=True)


def _worker_rows(node: NodeConfig) -> Iterator[tuple[str, ...]]:
    yield "name", "device", "backend", "gRPC", "metrics", "threads"
    for worker in node.workers:
        endpoints = worker.endpoints
        yield (
            worker.name,
            worker.device or "cpu",
            str(worker.runtime.backend),
            str(Address(endpoints.host, endpoints.port)),
            str(Address(endpoints.metrics_host, endpoints.metrics_port)),
            str(worker.threads),
        )


def _table(rows: Iterator[Sequence[str]]) -> Iterator[str]:
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield INDENT + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
