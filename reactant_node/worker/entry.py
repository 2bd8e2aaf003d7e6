"""Where a worker process begins.

Light at the top: the supervisor imports this module to name the target, and in the child the log is set up before
anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

from reactant_node.config.schema import WorkerConfig
from reactant_node.reports import Report
from reactant_node.telemetry import logs


def main(report: Callable[[Report], None], config: WorkerConfig, log_format: str, drain_seconds: float) -> None:
    """Serve until SIGTERM, drain, return.

    Args:
        report: sends a report to the supervisor, from any thread.
        config: everything this worker is told.
        log_format: `text` or `json`.
        drain_seconds: how long calls in flight may still take after SIGTERM.

    Raises:
        RuntimeUnavailable: no runtime or device.
        AddressInUse: its port is taken.
    """
    logs.configure(log_format, source=config.name)
    # Imported here, the house's one sanctioned late import: it brings numpy and ONNX Runtime.
    from reactant_node.worker.assembly import run_worker  # noqa: PLC0415

    run_worker(report, config, drain_seconds)
