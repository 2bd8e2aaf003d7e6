"""The one table of settings: what each may be, which variable sets it, and whether it has an effect yet. Pure.

A key is named by its path, `runtime.backend`, as it stands in a file: a worker's keys (reference 1.31) below
`global:` or a worker's entry, the gateway's (1.32) in gateway.yml or below `gateway:`. The variable follows from the
path, `INFERENCE_SERVER_RUNTIME_BACKEND`, unless a row names another. Keys of the reference that this version cannot
honour are told apart in two ways: where ignoring them is harmless (a hint, a tuning figure) they are accepted, and a
note says that they have no effect; where it would give another answer than was asked for (plain text instead of TLS,
other numerics) they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reactant_node.config.checks import (
    BYTES,
    HOST,
    NAME,
    PATH,
    PORT,
    Check,
    address,
    boolean,
    choice,
    either,
    integer,
    not_served,
    number,
    octal_mode,
    seconds,
    text,
    texts,
)

Values = dict[str, object]
"""Checked values by key path."""

LPT_PACKING = "lpt_packing"
"""A scheduling mode that this version does not have; it decides on speed alone, so another one stands in for it."""

MAX_COUNT = 1_000_000
MAX_WORKERS = 64
"""More devices or workers than any host has: a larger count is a slip."""


@dataclass(frozen=True, slots=True)
class Key:
    """One row.

    Attributes:
        check: what the value may be.
        idle: where the key has no effect yet, the value that is in force in any case; None where it is honoured.
        variable: the environment variable, where it does not follow from the path.
    """

    check: Check
    idle: object = None
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The keys of one kind of mapping.

    Attributes:
        keys: by path.
        models_at: path below which each model has keys of its own; empty where there is no such thing.
        model_keys: these, by path below the model's name.
        elsewhere: first-level keys that somebody else reads.
        hints: paths from outside this table to suggest for an unknown key.
    """

    keys: Mapping[str, Key]
    models_at: str = ""
    model_keys: Mapping[str, Key] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


_SWITCH = choice("inherit", "on", "off", also={"true": "on", "false": "off"})
_RESIDENCY = choice("unpinned", "system", "device", also={"pinned_system": "system", "pinned_device": "device"})
_FILL_MODE = choice("run", "spread", "inflight")
_REPLICAS = either(integer(1, MAX_COUNT), choice("all"))
_NUMERICS = choice("auto", because="this version sets no precision, and other numbers than asked for would be wrong")
_NO_TLS = not_served(
    "TLS is not served by this version, and plain text is not what was asked for: delete it, and put a proxy that "
    "speaks TLS in front"
)

WORKER = Table(
    keys={
        "model_control_mode": Key(choice("dynamic", "static", "explicit", also={"poll": "dynamic", "none": "static"})),
        "model_poll_seconds": Key(seconds(above_zero=True)),
        "models_include": Key(texts(text("a model's folder name"), separator=":")),
        "cache_dir": Key(text("a folder's path", blank=True), idle=""),
        "runtime.backend": Key(choice("cpu", "cuda", also={"gpu": "cuda"})),
        "runtime.device_ordinal": Key(integer(0, MAX_WORKERS - 1)),
        "runtime.mem_fraction": Key(number(0, 1, above_low=True), idle=0.9),
        "runtime.preallocate": Key(boolean(), idle=True),
        "runtime.allow_cpu_fallback": Key(boolean()),
        "runtime.weight_cache_fraction": Key(number(0, 1), idle=1.0),
        "runtime.weight_cache_wiggle_fraction": Key(number(0, 1, below_high=True), idle=0.1),
        "runtime.autotune": Key(boolean(), idle=True),
        "runtime.autotune_cache": Key(_SWITCH, idle="inherit"),
        "runtime.autotune_cache_dir": Key(text("a folder's path"), idle="inherit"),
        "runtime.numerics": Key(_NUMERICS),
        "runtime.shared_host_weights": Key(boolean(), idle=False),
        "runtime.shared_host_weights_mode": Key(octal_mode(), idle="600"),
        "scheduler.discipline": Key(choice("fair", "fifo", "edf")),
        "scheduler.ema_halflife_seconds": Key(seconds(above_zero=True)),
        "scheduler.recency_penalty_cap": Key(number(0, 1, above_low=True)),
        "scheduler.coalescing_discount": Key(number(0, 1, below_high=True)),
        "scheduler.cost_ema_alpha": Key(number(0, 1, above_low=True)),
        "scheduler.max_queue_depth": Key(integer(1, MAX_COUNT)),
        "scheduler.dispatch_timeout_seconds": Key(seconds()),
        "scheduler.compaction_interval": Key(integer(0, MAX_COUNT), idle=0),
        "endpoints.host": Key(HOST),
        "endpoints.port": Key(PORT),
        "endpoints.metrics_port": Key(PORT),
        "endpoints.max_concurrent_requests": Key(integer(0, MAX_COUNT)),
        "grpc.max_recv_msg_bytes": Key(BYTES),
        "grpc.max_send_msg_bytes": Key(BYTES),
    },
    models_at="scheduler.models",
    model_keys={
        "weight": Key(number(0, MAX_COUNT, above_low=True)),
        "residency": Key(_RESIDENCY, idle=""),
        "pin_to_gpu": Key(boolean(), idle=False),
        "max_batch_size": Key(integer(1, MAX_COUNT)),
    },
)
"""`global:`, and a worker's entry beside what ENTRY has."""

ENTRY = Table(
    keys={
        "name": Key(NAME),
        "gpu": Key(integer(0, MAX_WORKERS - 1)),
        "host": Key(HOST),
        "port": Key(PORT),
        "metrics_port": Key(PORT),
        "threads": Key(integer(1, 1024)),
    }
)
"""What a worker's entry says of itself (NODE-6); metrics_port and threads are ours."""

GATEWAY = Table(
    keys={
        "listen.grpc": Key(address(any_host=True)),
        "listen.metrics": Key(address(any_host=True)),
        "endpoints": Key(texts(address(), separator=","), variable="REACTANT_GATEWAY_WORKERS"),
        "metrics_endpoints": Key(texts(address(), separator=","), variable="REACTANT_GATEWAY_WORKER_METRICS"),
        "worker_names": Key(texts(NAME, separator=",")),
        "rpcs": Key(choice("node", "minimal")),
        "startup_wait_seconds": Key(
            either(seconds(), choice("inf", also={"forever": "inf", "-1": "inf"})),
            idle=0.0,
        ),
        "health_interval_seconds": Key(seconds(above_zero=True)),
        "wedge_exit_rounds": Key(integer(0, MAX_COUNT), idle=3),
        "grpc.max_recv_msg_bytes": Key(BYTES),
        "grpc.max_send_msg_bytes": Key(BYTES),
        "grpc.max_concurrent_requests_per_worker": Key(integer(0, MAX_COUNT)),
        "worker_client.request_timeout_seconds": Key(seconds(above_zero=True)),
        "worker_client.max_concurrent_streams": Key(integer(1, MAX_COUNT)),
        "logging.level": Key(choice("debug", "info", "warning", "error"), idle="info"),
        "logging.format": Key(choice("text", "json"), idle=""),
        "tls.cert_file": Key(_NO_TLS),
        "tls.key_file": Key(_NO_TLS),
        "tls.client_ca_file": Key(_NO_TLS),
        "scheduling.mode": Key(choice("round_robin", "least_outstanding", LPT_PACKING)),
        "scheduling.work_basis": Key(choice("compute", "items", "requests"), idle="compute"),
        "scheduling.rebalance_compute_seconds": Key(seconds(above_zero=True), idle=300.0),
        "scheduling.first_rebalance_compute_seconds": Key(seconds(), idle=60.0),
        "scheduling.ema_halflife_compute_seconds": Key(seconds(), idle=0.0),
        "scheduling.hysteresis": Key(number(0, 1, below_high=True), idle=0.0),
        "scheduling.default_replicas": Key(_REPLICAS, idle=1),
        "scheduling.routing_policy": Key(choice("fill_least", "fill_rr"), idle="fill_least"),
        "scheduling.routing_fill_mode": Key(_FILL_MODE, idle="run"),
        "scheduling.routing_fill_factor": Key(number(0, MAX_COUNT, above_low=True), idle=1.0),
        "scheduling.forbid_memory_oversubscription": Key(boolean(), idle=True),
        "scheduling.compaction_mode": Key(choice("eager", "scheduled", "off"), idle="eager"),
        "scheduling.compaction_interval": Key(integer(0, MAX_COUNT), idle=1),
        "scheduling.max_worker_share": Key(number(0, 1, above_low=True), idle=0.8),
    },
    models_at="scheduling.models",
    model_keys={
        "replicas": Key(_REPLICAS, idle=1),
        "fill_mode": Key(either(_FILL_MODE, choice("inherit")), idle="inherit"),
        "fill_factor": Key(either(number(0, MAX_COUNT, above_low=True), choice("inherit")), idle="inherit"),
    },
)
"""gateway.yml, and `gateway:` of the node file."""

NODE = Table(
    keys={
        "role": Key(choice("all", "workers", "gateway"), variable="REACTANT_ROLE"),
        "base_port": Key(PORT),
        "metrics_base_port": Key(PORT),
        "log_format": Key(choice("text", "json"), variable="REACTANT_LOG_FORMAT"),
        "shared_host_weights": Key(boolean()),
        "supervisor.max_restarts": Key(integer(0, MAX_COUNT), variable="REACTANT_SUPERVISOR_MAX_RESTARTS"),
        "supervisor.exit_timeout_seconds": Key(
            seconds(above_zero=True), variable="REACTANT_SUPERVISOR_EXIT_TIMEOUT_SECONDS"
        ),
        "supervisor.heartbeat_timeout_seconds": Key(
            seconds(), variable="REACTANT_SUPERVISOR_HEARTBEAT_TIMEOUT_SECONDS"
        ),
    },
    elsewhere=("model_repo", "gpus", "global", "workers", "models", "gateway"),
    hints=(
        *(f"global.{path}" for path in ("runtime", "scheduler", "endpoints", *WORKER.keys)),
        *(f"gateway.{path}" for path in ("listen", *GATEWAY.keys)),
    ),
)
"""The top of the node file; log_format and supervisor are ours."""

LAUNCH_KEYS: Mapping[str, Key] = {
    "config": Key(PATH, variable="REACTANT_NODE_FILE"),
    "gateway_file": Key(PATH, variable="REACTANT_GATEWAY_FILE"),
    "model_dirs": Key(texts(PATH, separator=":"), variable="INFERENCE_SERVER_MODEL_DIRS"),
    "cpu_workers": Key(integer(1, MAX_WORKERS), variable="REACTANT_CPU_WORKERS"),
    "worker_threads": Key(integer(1, 1024), variable="REACTANT_WORKER_THREADS"),
    "runtime_dir": Key(PATH, variable="REACTANT_RUNTIME_DIR"),
    "workspace_root": Key(PATH, variable="REACTANT_WORKSPACE_ROOT"),
    "meta_concurrency": Key(integer(1, MAX_COUNT), idle=2, variable="REACTANT_META_CONCURRENCY"),
    "fanout_bytes": Key(integer(0), idle=1024**3, variable="REACTANT_FANOUT_BYTES"),
    "fanout_slots": Key(integer(0, MAX_COUNT), idle=16, variable="REACTANT_FANOUT_SLOTS"),
    "gpu_reclaim_timeout_seconds": Key(seconds(), idle=30.0, variable="REACTANT_GPU_RECLAIM_TIMEOUT_SECONDS"),
    "gpu_reclaim_max_used_percent": Key(number(0, 100), idle=15.0, variable="REACTANT_GPU_RECLAIM_MAX_USED_PERCENT"),
}
"""What only a flag or variable can say: it is about this start, not about the node."""

REMOVED: Mapping[str, str] = {
    "batch_policy": "it was removed: coalescing needs no window; delete it",
    "runtime.residency_mode": "it was removed: use model_control_mode, which is dynamic, static or explicit; delete it",
}
"""Keys of older reference versions, and what to do instead."""
