"""The whole node as a node file's mapping: what really runs, written out. Pure.

The document loads again to an equal configuration: every worker is listed with its device, ports and threads, so that
nothing is detected or counted a second time. Keys carry the names of the fields, so a section is its dataclass.
"""

from __future__ import annotations

from dataclasses import asdict

from reactant_node.config.schema import GatewayConfig, ListenConfig, ModelPolicy, NodeConfig, WorkerConfig

Document = dict[str, object]


def materialized(node: NodeConfig) -> Document:
    """The node as a node file's mapping."""
    document: Document = {
        "role": str(node.role),
        "log_format": node.log_format,
        "supervisor": asdict(node.supervisor),
        "gateway": {**_listen(node.listen), **(_gateway(node.gateway) if node.gateway else {})},
    }
    if node.workers:
        first = node.workers[0]
        document |= {
            "model_repo": list(first.model_dirs),
            "models": {"allow_code": first.allow_code},
            "gpus": [worker.device for worker in node.workers if worker.device] or 0,
            "global": {"runtime": {"backend": str(first.runtime.backend)}},
            "workers": [_worker(worker) for worker in node.workers],
        }
    return document


def _listen(listen: ListenConfig) -> Document:
    grpc, metrics = _address(listen.grpc_host, listen.grpc_port), _address(listen.metrics_host, listen.metrics_port)
    return {"listen": {"grpc": grpc, "metrics": metrics}}


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _gateway(gateway: GatewayConfig) -> Document:
    lists = {
        "endpoints": list(gateway.endpoints),
        "metrics_endpoints": list(gateway.metrics_endpoints),
        "worker_names": list(gateway.worker_names),
    }
    return {
        **{key: values for key, values in lists.items() if values},
        "rpcs": gateway.rpcs,
        "health_interval_seconds": gateway.health_interval_seconds,
        "scheduling": {"mode": gateway.scheduling_mode},
        "worker_client": {
            "request_timeout_seconds": gateway.request_timeout_seconds,
            "max_concurrent_streams": gateway.max_concurrent_streams,
        },
        "grpc": {
            **asdict(gateway.grpc),
            "max_concurrent_requests_per_worker": gateway.max_concurrent_requests_per_worker,
        },
    }


def _worker(worker: WorkerConfig) -> Document:
    runtime, scheduler, endpoints = asdict(worker.runtime), asdict(worker.scheduler), worker.endpoints
    del runtime["backend"]  # of the node
    scheduler["models"] = {name: _policy(policy) for name, policy in worker.scheduler.models.items()}
    return {
        "name": worker.name,
        "threads": worker.threads,
        "host": endpoints.host,
        "port": endpoints.port,
        "metrics_port": endpoints.metrics_port,
        "models_include": list(worker.models_include),
        "model_control_mode": worker.model_control_mode,
        "model_poll_seconds": worker.model_poll_seconds,
        "cache_dir": worker.cache_dir,
        "runtime": runtime,
        "scheduler": scheduler,
        "endpoints": {"max_concurrent_requests": endpoints.max_concurrent_requests},
        "grpc": asdict(worker.grpc),
    }


def _policy(policy: ModelPolicy) -> Document:
    return {key: value for key, value in asdict(policy).items() if value is not None}
