"""The tables of all keys: what each may be, and whether it has an effect yet. Pure.

A key is named by its path, `runtime.backend`, as it stands in a file, below `global:` or a worker's entry for the
worker's keys (reference 1.31) and in gateway.yml or `gateway:` for the gateway's (1.32). Keys of the reference that
this version cannot honour are told apart in two ways: where ignoring them is harmless (a hint, a tuning figure) they
are accepted, and a note says that they have no effect; where it would give another answer than was asked for
(plain text instead of TLS, other numerics) they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from reactant_node.config.checks import BYTES, PORT, Check, boolean, choice, integer, number, octal_mode, text, texts

Values = dict[str, object]
"""Checked values by key path."""


@dataclass(frozen=True, slots=True)
class Key:
    """One row.

    Attributes:
        check: what the value may be.
        default: where ignoring it is harmless, the value that is in force in any case; else None: it is honoured.
    """

    check: Check
    default: object = None


WORKER_KEYS: Mapping[str, Key] = {
    "model_control_mode": Key(
        choice("dynamic", "static", "explicit", also={"poll": "dynamic", "none": "static"}), "dynamic"
    ),
    "model_poll_seconds": Key(number(0, above_low=True), 15.0),
    "models_include": Key(texts("a model's folder name", separator=":")),
    "cache_dir": Key(text("a folder's path"), ""),
    "runtime.backend": Key(choice("cpu", "cuda", also={"gpu": "cuda"})),
    "runtime.device_ordinal": Key(integer(0, 63)),
    "runtime.mem_fraction": Key(number(0, 1, above_low=True), 0.9),
    "runtime.preallocate": Key(boolean(), True),
    "runtime.allow_cpu_fallback": Key(boolean()),
    "runtime.weight_cache_fraction": Key(number(0, 1), 1.0),
    "runtime.weight_cache_wiggle_fraction": Key(number(0, 1, below_high=True), 0.1),
    "runtime.autotune": Key(boolean(), True),
    "runtime.autotune_cache": Key(choice("inherit", "on", "off"), "inherit"),
    "runtime.autotune_cache_dir": Key(text("a folder's path"), "inherit"),
    "runtime.numerics": Key(choice("auto")),
    "runtime.shared_host_weights": Key(boolean(), False),
    "runtime.shared_host_weights_mode": Key(octal_mode(), "600"),
    "scheduler.discipline": Key(choice("fair", "fifo", "edf"), "fair"),
    "scheduler.ema_halflife_seconds": Key(number(0, above_low=True), 30.0),
    "scheduler.recency_penalty_cap": Key(number(0, 1, above_low=True), 0.25),
    "scheduler.coalescing_discount": Key(number(0, 1, below_high=True), 0.1),
    "scheduler.cost_ema_alpha": Key(number(0, 1, above_low=True), 0.2),
    "scheduler.max_queue_depth": Key(integer(1, 1_000_000)),
    "scheduler.dispatch_timeout_seconds": Key(number(0)),
    "scheduler.compaction_interval": Key(integer(0), 0),
    "endpoints.host": Key(text("a host name or address")),
    "endpoints.port": Key(PORT),
    "endpoints.metrics_port": Key(PORT),
    "endpoints.max_concurrent_requests": Key(integer(0, 1_000_000)),
    "grpc.max_recv_msg_bytes": Key(BYTES),
    "grpc.max_send_msg_bytes": Key(BYTES),
}

MODEL_POLICY_KEYS: Mapping[str, Key] = {
    "weight": Key(number(0, above_low=True), 1.0),
    "residency": Key(
        choice(
            "unpinned",
            "system",
            "device",
            also={"pinned_system": "system", "pinned_device": "device"},
        ),
        "",
    ),
    "pin_to_gpu": Key(boolean(), False),
    "max_batch_size": Key(integer(1), 0),
}
"""Below `scheduler.models.<name>`."""

_LISTEN = text("host:port", pattern=r".*:[0-9]{1,5}")

GATEWAY_KEYS: Mapping[str, Key] = {
    "listen.grpc": Key(_LISTEN),
    "listen.metrics": Key(_LISTEN),
    "endpoints": Key(texts("host:port", separator=",")),
    "metrics_endpoints": Key(texts("host:port", separator=",")),
    "worker_names": Key(texts("a name", separator=",")),
    "rpcs": Key(choice("node", "minimal")),
    "startup_wait_seconds": Key(text("seconds, or inf"), ""),
    "health_interval_seconds": Key(number(0, above_low=True)),
    "wedge_exit_rounds": Key(integer(0), 3),
    "grpc.max_recv_msg_bytes": Key(BYTES),
    "grpc.max_send_msg_bytes": Key(BYTES),
    "grpc.max_concurrent_requests_per_worker": Key(integer(0, 1_000_000)),
    "worker_client.request_timeout_seconds": Key(number(0, above_low=True)),
    "worker_client.max_concurrent_streams": Key(integer(1, 1_000_000)),
    "logging.level": Key(choice("debug", "info", "warning", "error"), "info"),
    "logging.format": Key(choice("text", "json"), ""),
    "scheduling.mode": Key(choice("round_robin", "least_outstanding")),
    "scheduling.work_basis": Key(choice("compute", "items", "requests"), "compute"),
    "scheduling.rebalance_compute_seconds": Key(number(0, above_low=True), 300.0),
    "scheduling.first_rebalance_compute_seconds": Key(number(0), 60.0),
    "scheduling.ema_halflife_compute_seconds": Key(number(0), 0.0),
    "scheduling.hysteresis": Key(number(0, 1, below_high=True), 0.0),
    "scheduling.routing_policy": Key(choice("fill_least", "fill_rr"), "fill_least"),
    "scheduling.routing_fill_mode": Key(choice("run", "spread", "inflight"), "run"),
    "scheduling.routing_fill_factor": Key(number(0, above_low=True), 1.0),
    "scheduling.forbid_memory_oversubscription": Key(boolean(), True),
    "scheduling.compaction_mode": Key(choice("eager", "scheduled", "off"), "eager"),
    "scheduling.compaction_interval": Key(integer(0), 1),
    "scheduling.max_worker_share": Key(number(0, 1, above_low=True), 0.8),
}

REMOVED_KEYS: Mapping[str, str] = {
    "batch_policy": "it was removed: coalescing needs no window; delete it",
    "runtime.residency_mode": "it was removed: use model_control_mode, dynamic, static or explicit",
}

REFUSED_KEYS: Mapping[str, str] = {
    "tls.cert_file": "TLS is not served by this version, and plain text is not what was asked for; delete it, or put a "
    "proxy that speaks TLS in front",
    "tls.key_file": "TLS is not served by this version; delete it",
    "tls.client_ca_file": "TLS is not served by this version; delete it",
}


def unknown(path: str, known: Iterable[str]) -> str:
    """The problem line for a key that does not exist, with the nearest one that does."""
    if path in REMOVED_KEYS:
        return f"{path}: {REMOVED_KEYS[path]}"
    if path in REFUSED_KEYS:
        return f"{path}: {REFUSED_KEYS[path]}"
    near = get_close_matches(path, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else "; see docs/configuration.md for the keys there are"
    return f"{path}: unknown key{hint}"
