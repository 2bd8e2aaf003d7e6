"""The run-time folder, and the materialized node file in it: what really runs, written out.

The document loads again as a node file, to the same configuration: every worker is listed with its device and ports,
so that nothing is detected a second time. It is private to its owner, since paths and addresses are in it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from reactant_node.config.documents import render_document
from reactant_node.config.schema import GatewayConfig, ListenConfig, NodeConfig, WorkerConfig
from reactant_node.errors import ConfigError

RUNTIME_DIR = Path("/run/reactantserver")
NODE_FILE_NAME = "node.yaml"


def prepare_runtime_dir(wanted: str) -> Path:
    """The folder to use, made with mode 0700 where it is not there.

    Args:
        wanted: by flag or REACTANT_RUNTIME_DIR; empty means /run/reactantserver, or a private temporary folder where
            that is not writable.

    Raises:
        ConfigError: the folder that was asked for cannot be written.
    """
    folder = Path(wanted) if wanted else RUNTIME_DIR
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
    except OSError as error:
        if not wanted:
            return Path(tempfile.mkdtemp(prefix="reactant-node-"))
        raise ConfigError(
            f"REACTANT_RUNTIME_DIR: got {wanted!r}, which cannot be used ({error.strerror}); name a writable folder"
        ) from error
    return folder


def write_node_file(folder: Path, node: NodeConfig) -> Path:
    """Write the materialized node file whole or not at all, mode 0600.

    A node that starts later in the same folder replaces it: the file belongs to whoever started last, as the folder
    does. Nodes that run beside each other get a folder each.
    """
    path = folder / NODE_FILE_NAME
    partial = folder / f".{NODE_FILE_NAME}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(render_document(materialized(node)))
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return path


def materialized(node: NodeConfig) -> dict[str, object]:
    """The node as a node file's mapping."""
    supervisor = node.supervisor
    document: dict[str, object] = {
        "role": str(node.role),
        "log_format": node.log_format,
        "supervisor": {
            "max_restarts": supervisor.max_restarts,
            "exit_timeout_seconds": supervisor.exit_timeout_seconds,
            "heartbeat_timeout_seconds": supervisor.heartbeat_timeout_seconds,
        },
        "gateway": _gateway(node.gateway, node.listen),
    }
    if node.workers:
        devices = [worker.device for worker in node.workers if worker.device]
        document |= {
            "model_repo": list(node.workers[0].model_dirs),
            "models": {"allow_code": node.workers[0].allow_code},
            "gpus": devices or 0,
            "global": {"runtime": {"backend": str(node.workers[0].runtime.backend)}},
            "workers": [_worker(worker) for worker in node.workers],
        }
    return document


def _gateway(gateway: GatewayConfig | None, listen: ListenConfig) -> dict[str, object]:
    document: dict[str, object] = {
        "listen": {
            "grpc": _address(listen.grpc_host, listen.grpc_port),
            "metrics": _address(listen.metrics_host, listen.metrics_port),
        }
    }
    if gateway is None:
        return document
    for key, values in (
        ("endpoints", gateway.endpoints),
        ("metrics_endpoints", gateway.metrics_endpoints),
        ("worker_names", gateway.worker_names),
    ):
        if values:
            document[key] = list(values)
    return document | {
        "rpcs": gateway.rpcs,
        "health_interval_seconds": gateway.health_interval_seconds,
        "scheduling": {"mode": gateway.scheduling_mode},
        "worker_client": {
            "request_timeout_seconds": gateway.request_timeout_seconds,
            "max_concurrent_streams": gateway.max_concurrent_streams,
        },
        "grpc": {
            "max_recv_msg_bytes": gateway.grpc.max_recv_msg_bytes,
            "max_send_msg_bytes": gateway.grpc.max_send_msg_bytes,
            "max_concurrent_requests_per_worker": gateway.max_concurrent_requests_per_worker,
        },
    }


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _worker(worker: WorkerConfig) -> dict[str, object]:
    runtime, scheduler, endpoints = worker.runtime, worker.scheduler, worker.endpoints
    return {
        "name": worker.name,
        "threads": worker.threads,
        "host": endpoints.host,
        "port": endpoints.port,
        "metrics_port": endpoints.metrics_port,
        "models_include": list(worker.models_include),
        "model_control_mode": worker.model_control_mode,
        "model_poll_seconds": worker.model_poll_seconds,
        **({"cache_dir": worker.cache_dir} if worker.cache_dir else {}),
        "runtime": {
            "device_ordinal": runtime.device_ordinal,
            "mem_fraction": runtime.mem_fraction,
            "preallocate": runtime.preallocate,
            "allow_cpu_fallback": runtime.allow_cpu_fallback,
            "weight_cache_fraction": runtime.weight_cache_fraction,
            "weight_cache_wiggle_fraction": runtime.weight_cache_wiggle_fraction,
            "autotune": runtime.autotune,
            "numerics": runtime.numerics,
            "shared_host_weights": runtime.shared_host_weights,
            "shared_host_weights_mode": runtime.shared_host_weights_mode,
        },
        "scheduler": {
            "discipline": scheduler.discipline,
            "ema_halflife_seconds": scheduler.ema_halflife_seconds,
            "recency_penalty_cap": scheduler.recency_penalty_cap,
            "coalescing_discount": scheduler.coalescing_discount,
            "cost_ema_alpha": scheduler.cost_ema_alpha,
            "max_queue_depth": scheduler.max_queue_depth,
            "dispatch_timeout_seconds": scheduler.dispatch_timeout_seconds,
            "compaction_interval": scheduler.compaction_interval,
            "models": {
                name: {
                    "weight": policy.weight,
                    **({"residency": policy.residency} if policy.residency else {}),
                    **({"max_batch_size": policy.max_batch_size} if policy.max_batch_size else {}),
                }
                for name, policy in scheduler.models.items()
            },
        },
        "endpoints": {"max_concurrent_requests": endpoints.max_concurrent_requests},
        "grpc": {
            "max_recv_msg_bytes": worker.grpc.max_recv_msg_bytes,
            "max_send_msg_bytes": worker.grpc.max_send_msg_bytes,
        },
    }
