"""The public side: where the node listens, and the gateway's settings. Pure.

They come from flags, REACTANT_GATEWAY_*, gateway.yml and the node file's `gateway:` block, in this order, already
checked value by value; below them all stands `global.grpc`, since what workers take the gateway has to let through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from reactant_node.config.checks import shown, split_address
from reactant_node.config.keys import LPT_PACKING, Values
from reactant_node.config.options import PublicAddress
from reactant_node.config.problems import Problems
from reactant_node.config.schema import GatewayConfig, GrpcConfig, ListenConfig

_FIELDS = {
    "rpcs": "rpcs",
    "scheduling.mode": "scheduling_mode",
    "grpc.max_concurrent_requests_per_worker": "max_concurrent_requests_per_worker",
    "worker_client.request_timeout_seconds": "request_timeout_seconds",
    "worker_client.max_concurrent_streams": "max_concurrent_streams",
    "health_interval_seconds": "health_interval_seconds",
}
"""Key path to field of GatewayConfig."""


def make_listen(values: Values, flags: PublicAddress) -> ListenConfig:
    """The public addresses: `listen.*`, part by part under the flags."""
    listen = ListenConfig()
    if "listen.grpc" in values:
        host, port = split_address(str(values["listen.grpc"]))
        listen = replace(listen, grpc_host=host or listen.grpc_host, grpc_port=port)
    if "listen.metrics" in values:
        host, port = split_address(str(values["listen.metrics"]))
        listen = replace(listen, metrics_host=host or listen.metrics_host, metrics_port=port)
    if flags.host is not None:
        listen = replace(listen, grpc_host=flags.host, metrics_host=flags.host)
    if flags.grpc_port is not None:
        listen = replace(listen, grpc_port=flags.grpc_port)
    return listen if flags.metrics_port is None else replace(listen, metrics_port=flags.metrics_port)


def make_gateway(values: Values, listen: ListenConfig, worker_values: Values) -> GatewayConfig:
    """The gateway beside the workers of this node; it learns of them from the supervisor.

    Args:
        values: by path of GATEWAY's keys.
        listen: its addresses.
        worker_values: `global` and what the environment says for every worker.
    """
    limits = {
        name: values.get(path, worker_values.get(path))
        for name, path in (
            ("max_recv_msg_bytes", "grpc.max_recv_msg_bytes"),
            ("max_send_msg_bytes", "grpc.max_send_msg_bytes"),
        )
    }
    grpc = GrpcConfig(**cast("dict[str, Any]", {name: it for name, it in limits.items() if it is not None}))
    found = {name: values[path] for path, name in _FIELDS.items() if path in values}
    if found.get("scheduling_mode") == LPT_PACKING:
        del found["scheduling_mode"]
    return GatewayConfig(listen=listen, grpc=grpc, **cast("dict[str, Any]", found))


def with_endpoints(gateway: GatewayConfig, values: Values, problems: Problems) -> GatewayConfig:
    """The same for role `gateway`, whose workers are elsewhere.

    The three lists belong together by position; an endpoint that is listed again is dropped with what belongs to it.
    """
    endpoints = cast("tuple[str, ...]", values.get("endpoints", ()))
    others = {key: cast("tuple[str, ...]", values.get(key, ())) for key in ("metrics_endpoints", "worker_names")}
    if not endpoints:
        if not problems.mention(r"(^|[ .])endpoints: got|^REACTANT_GATEWAY_WORKERS: got"):
            problems.add(
                "endpoints: missing; role gateway needs the workers' host:port, in gateway.yml or "
                "REACTANT_GATEWAY_WORKERS"
            )
        return gateway
    for key, items in others.items():
        if items and len(items) != len(endpoints):
            problems.add(f"{key}: got {len(items)} for {len(endpoints)} endpoints; list one for each, or none")
            return gateway
    kept = [index for index, endpoint in enumerate(endpoints) if endpoint not in endpoints[:index]]
    others = {key: tuple(items[index] for index in kept) if items else () for key, items in others.items()}
    _check_distinct(others["worker_names"], problems)
    return replace(
        gateway,
        endpoints=tuple(endpoints[index] for index in kept),
        metrics_endpoints=others["metrics_endpoints"],
        worker_names=others["worker_names"],
    )


def _check_distinct(names: tuple[str, ...], problems: Problems) -> None:
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"worker_names: the name {shown(name)} is given {names.count(name)} times; names are unique")
