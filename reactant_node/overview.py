"""What would run, as text: the `plan` command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reactant_node.config.schema import NodeConfig
from reactant_node.launch import LaunchPlan, threads_line
from reactant_node.transport.interface import Address


def render_plan(plan: LaunchPlan) -> str:
    """Role, devices and how they were found, workers, ports, threads, notes."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: LaunchPlan) -> Iterator[str]:
    node = plan.node
    yield f"role     {node.role}"
    if plan.detection is not None:
        yield "devices  " + (", ".join(plan.detection.devices) or "none")
        for step in plan.detection.steps:
            yield f"         {step.source}: {step.answer}"
    if node.workers:
        yield "models   " + ", ".join(node.workers[0].model_dirs)
        yield "workers"
        yield from _table(_worker_rows(node))
        yield f"threads  {threads_line(plan)}"
    listen = node.listen
    grpc, metrics = Address(listen.grpc_host, listen.grpc_port), Address(listen.metrics_host, listen.metrics_port)
    sole = "; the sole worker takes the public ports" if _sole(node) else ""
    yield f"gateway  gRPC {grpc}, metrics {metrics}" if node.gateway else f"gateway  none{sole}"
    for note in node.notes:
        yield f"note     {note}"


def _sole(node: NodeConfig) -> bool:
    return len(node.workers) == 1 and str(node.role) == "all"


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
        yield "         " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
