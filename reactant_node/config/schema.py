"""The configuration, as every actor sees it: frozen dataclasses, built once by `loader.py`.

Names, defaults and ranges follow the reference's tables 1.31 and 1.32; where ours differ, `docs/configuration.md`
says why. Nobody reads `os.environ` or a file after the loader has returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

GpuSetting = int | tuple[str, ...] | None
"""`gpus:` of the node file: a count, selectors, or None for `auto`."""


class Role(StrEnum):
    """What this process runs: workers and gateway, workers only, or a gateway for workers elsewhere."""

    ALL = "all"
    WORKERS = "workers"
    GATEWAY = "gateway"


class Backend(StrEnum):
    """The device family. `gpu` in a file means `cuda`."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """`runtime.*`: the device and its memory."""

    backend: Backend = Backend.CPU
    device_ordinal: int = 0
    mem_fraction: float = 0.9
    preallocate: bool = True
    allow_cpu_fallback: bool = False
    weight_cache_fraction: float = 1.0
    weight_cache_wiggle_fraction: float = 0.1
    autotune: bool = True
    numerics: str = "auto"
    shared_host_weights: bool = False
    shared_host_weights_mode: str = "600"


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """`scheduler.models.<name>.*`."""

    weight: float = 1.0
    residency: str | None = None
    max_batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`scheduler.*`."""

    discipline: str = "fair"
    ema_halflife_seconds: float = 30.0
    recency_penalty_cap: float = 0.25
    coalescing_discount: float = 0.1
    cost_ema_alpha: float = 0.2
    max_queue_depth: int = 1024
    dispatch_timeout_seconds: float = 30.0
    compaction_interval: int = 0
    models: dict[str, ModelPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointsConfig:
    """`endpoints.*`: where one worker listens. Port 0 is any free port."""

    host: str = "127.0.0.1"
    port: int = 8080
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    max_concurrent_requests: int = 64


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """`grpc.*`: message limits in bytes."""

    max_recv_msg_bytes: int = 536_870_912
    max_send_msg_bytes: int = 536_870_912


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything one worker process is told. Pickled into it at spawn.

    Attributes:
        name: `worker0`…, unique in the node.
        device: the selector for CUDA_VISIBLE_DEVICES, verbatim (ordinal, GPU or MIG UUID); empty on a CPU worker.
        threads: compute threads of the one ONNX Runtime pool.
        model_dirs: repository roots.
        models_include: folder names to serve; empty means all.
        allow_code: `models.allow_code` of the node file: model.py in a model folder may run.
    """

    name: str
    device: str
    threads: int
    model_dirs: tuple[str, ...]
    models_include: tuple[str, ...] = ()
    allow_code: bool = False
    model_control_mode: str = "dynamic"
    model_poll_seconds: float = 15.0
    cache_dir: str = ""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    endpoints: EndpointsConfig = field(default_factory=EndpointsConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """`listen.*` of the gateway: the public ports."""

    grpc_host: str = "0.0.0.0"  # noqa: S104 - the node's purpose is to be reached; loopback is one setting away
    grpc_port: int = 8001
    metrics_host: str = "0.0.0.0"  # noqa: S104
    metrics_port: int = 8002


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """gateway.yml, the node file's `gateway:` block and REACTANT_GATEWAY_*.

    Attributes:
        endpoints: `host:port` of workers; only in role `gateway`, else the supervisor tells.
        metrics_endpoints: aligned with endpoints, may be empty.
        worker_names: aligned with endpoints; `host:port` where empty.
        rpcs: `node` answers metadata RPCs for the node, `minimal` leaves them UNIMPLEMENTED as the reference does.
        scheduling_mode: `round_robin` or `least_outstanding`.
    """

    listen: ListenConfig = field(default_factory=ListenConfig)
    endpoints: tuple[str, ...] = ()
    metrics_endpoints: tuple[str, ...] = ()
    worker_names: tuple[str, ...] = ()
    rpcs: str = "node"
    scheduling_mode: str = "round_robin"
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    max_concurrent_requests_per_worker: int = 64
    request_timeout_seconds: float = 60.0
    max_concurrent_streams: int = 32
    health_interval_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """How children are kept alive and stopped.

    Attributes:
        max_restarts: consecutive failures of one child after which the node gives up; 0 never (SUP-7).
        exit_timeout_seconds: one deadline for the whole shutdown, drain included; below the 30 s that container
            engines and Kubernetes grant.
        heartbeat_timeout_seconds: silence after which a child is replaced; 0 turns it off.
    """

    max_restarts: int = 0
    exit_timeout_seconds: float = 25.0
    heartbeat_timeout_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The whole node, materialized: nothing is left to be detected or defaulted.

    Attributes:
        workers: empty in role `gateway`.
        gateway: None where no gateway runs (role `workers`, or a sole worker in role `all`).
        workspace_root: REACTANT_WORKSPACE_ROOT: a checkout the children load from, or empty.
        runtime_dir: folder for the materialized node file and the records of deaths.
        log_format: `text` or `json`.
        threads_origin: who set the workers' threads; empty where they were counted from the CPUs.
        overrides: environment variables that were applied.
        notes: advisories to log once at start: settings without effect, unused devices.
        files: the node file and gateway.yml that were read.

    The last four say where values came from, and are no part of what makes two configurations equal.
    """

    role: Role
    workers: tuple[WorkerConfig, ...]
    gateway: GatewayConfig | None
    listen: ListenConfig
    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)
    workspace_root: str = ""
    runtime_dir: str = ""
    log_format: str = "text"
    threads_origin: str = field(default="", compare=False)
    overrides: tuple[str, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    files: tuple[str, ...] = field(default=(), compare=False)
