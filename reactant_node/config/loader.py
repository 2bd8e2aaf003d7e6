"""From flags, environment and files to one `NodeConfig`. The only place that knows where a setting came from.

Precedence: flag, environment, file, default. A worker's settings are layered: `global:`, its own entry, then the
environment and the flags, which speak for every worker. Sources are read first, each value checked against its
table; then the workers are placed; every problem on the way is gathered and raised at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from reactant_node.config.checks import PORT, Check, choice, integer, number, shown, text
from reactant_node.config.documents import read_document
from reactant_node.config.environment import MODEL_DIRS, Environment, read_environment
from reactant_node.config.keys import GATEWAY_KEYS, WORKER_KEYS, Key, Values
from reactant_node.config.placement import Entry, Plan, place, read_entry, read_settings, synthesized
from reactant_node.config.problems import Problems
from reactant_node.config.schema import (
    Backend,
    GatewayConfig,
    GrpcConfig,
    ListenConfig,
    NodeConfig,
    Role,
    SupervisorConfig,
    WorkerConfig,
)
from reactant_node.errors import ConfigError

NODE_FILE = Path("/etc/reactantserver/node.yaml")
GATEWAY_FILE = Path("/etc/reactantserver/gateway.yml")
MODEL_REPO = "/var/lib/reactantserver/models"
BASE_PORT = 8080
METRICS_BASE_PORT = 9100

GpuSetting = int | tuple[str, ...] | None
"""`gpus:` of the node file: a count, selectors, or None for `auto`."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said, as text; None or empty where it said nothing."""

    config: str | None = None
    role: str | None = None
    models: tuple[str, ...] = ()
    load_models: tuple[str, ...] = ()
    backend: str | None = None
    workers: str | None = None
    host: str | None = None
    grpc_port: str | None = None
    metrics_port: str | None = None
    base_port: str | None = None
    metrics_base_port: str | None = None
    exit_timeout_seconds: str | None = None
    log_format: str | None = None
    runtime_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    """What device detection answered.

    Attributes:
        selectors: one per visible device.
        source: which step answered, for messages.
        stated: an operator named them (REACTANT_GPUS, `gpus:`, CUDA_VISIBLE_DEVICES); else they were found.
    """

    selectors: tuple[str, ...]
    source: str
    stated: bool


@dataclass(frozen=True, slots=True)
class Host:
    """Facts of this host.

    Attributes:
        cpus: CPUs this process may use.
        default_backend: what an unset backend means: the one that the installed ONNX Runtime is for.
        detect: finds devices, given the node file's `gpus`; raises ConfigError for a malformed statement.
    """

    cpus: int
    default_backend: Backend
    detect: Callable[[GpuSetting], Devices]


NODE_KEYS: Mapping[str, Key] = {
    "base_port": Key(PORT),
    "metrics_base_port": Key(PORT),
    "role": Key(choice("all", "workers", "gateway")),
    "log_format": Key(choice("text", "json")),
    "shared_host_weights": Key(WORKER_KEYS["runtime.shared_host_weights"].check, default=False),
    "supervisor.max_restarts": Key(integer(0)),
    "supervisor.exit_timeout_seconds": Key(number(0, above_low=True)),
    "supervisor.heartbeat_timeout_seconds": Key(number(0)),
}
"""Single values at the top of the node file; the last four are ours."""

PARTS = ("model_repo", "gpus", "global", "workers", "models", "gateway")
"""What else stands at the top of the node file."""


@dataclass(slots=True)
class _File:
    """The node file, checked part by part."""

    path: Path | None = None
    node: Values = field(default_factory=dict)
    model_repo: tuple[str, ...] = ()
    gpus: GpuSetting = None
    common: Entry = field(default_factory=Entry)
    entries: tuple[Entry, ...] | None = None
    placements: Mapping[str, object] = field(default_factory=dict)
    allow_code: bool = False
    gateway: Mapping[str, object] = field(default_factory=dict)


def load_node(options: Options, environ: Mapping[str, str], host: Host) -> NodeConfig:
    """The whole configuration, materialized.

    Raises:
        ConfigError: with every problem found.
    """
    problems = Problems()
    environment = read_environment(environ, problems)
    file = _read_file(options, environment, problems)
    loading = _Loading(options, environment, file, host, problems)
    try:
        node = loading.node()
    except ConfigError as error:  # from detection
        for problem in error.problems:
            problems.add(problem)
        node = None
    problems.raise_if_any()
    return cast("NodeConfig", node)


def _read_file(options: Options, environment: Environment, problems: Problems) -> _File:
    path = _file_path(options.config, environment.node.get("REACTANT_NODE_FILE"), NODE_FILE)
    role = options.role or environment.node.get("REACTANT_ROLE")
    if path == NODE_FILE and (options.models or role == Role.GATEWAY):
        path = None  # flags say what to serve, or there is nothing to serve: the host's default is not meant
    if path is None:
        return _File()
    try:
        document = read_document(path)
    except ConfigError as error:
        problems.add(str(error))
        return _File(path, model_repo=("?",))
    return _checked_file(path, document, problems)


def _file_path(flag: str | None, variable: object, default: Path) -> Path | None:
    """A file that was named must exist, which reading it shows; the default one may."""
    named = flag or cast("str | None", variable)
    if named:
        return Path(named)
    return default if default.exists() else None


def _checked_file(path: Path, document: Mapping[str, object], problems: Problems) -> _File:
    file = _File(path, problems.values(document, NODE_KEYS, "", but=PARTS))
    file.model_repo = _model_repo(document.get("model_repo"), problems)
    file.gpus = _gpus(document.get("gpus"), problems)
    file.common = Entry({}, *read_settings(problems.mapping(document.get("global"), "global"), "global", problems))
    file.entries = _entries(document.get("workers"), problems)
    models = problems.mapping(document.get("models"), "models")
    file.allow_code = _allow_code(models.get("allow_code"), problems)
    file.placements = {name: workers for name, workers in models.items() if name != "allow_code"}
    file.gateway = problems.mapping(document.get("gateway"), "gateway")
    return file


def _model_repo(value: object, problems: Problems) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, str) and item and "\0" not in item for item in items):
        return tuple(items)
    problems.add(f"model_repo: got {shown(value)}; use a folder's path, or a list of them")
    return ("?",)


def _gpus(value: object, problems: Problems) -> GpuSetting:
    if value is None or value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DEVICES:
        return value
    if isinstance(value, list) and value and all(_is_selector(item) for item in value):
        return tuple(str(item) for item in value)
    problems.add(f"gpus: got {shown(value)}; use auto, a count, or a list of ordinals or UUIDs")
    return None


MAX_DEVICES = 64
"""More devices than any host has: a larger count is a slip."""


def _is_selector(item: object) -> bool:
    if isinstance(item, str):
        return bool(item.strip()) and "," not in item and item.isprintable()
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _entries(value: object, problems: Problems) -> tuple[Entry, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        problems.add(f"workers: got {shown(value)}; use a list with one mapping per worker, or leave it out")
        return None
    return tuple(read_entry(item, f"workers[{index}]", problems) for index, item in enumerate(value))


def _allow_code(value: object, problems: Problems) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    problems.add(f"models.allow_code: got {shown(value)}; use true or false")
    return False


class _Loading:
    """One load: joins the sources. Lives as long as the load; `problems` is the only thing it changes."""

    def __init__(self, options: Options, environment: Environment, file: _File, host: Host, problems: Problems) -> None:
        self._options = options
        self._environment = environment
        self._file = file
        self._host = host
        self._problems = problems

    def node(self) -> NodeConfig:
        role = Role(str(self._pick("--role", self._options.role, "REACTANT_ROLE", "role", Role.ALL)))
        gateway = self._gateway()
        workers: tuple[WorkerConfig, ...] = ()
        notes: list[str] = []
        if role is not Role.GATEWAY:
            plan, notes = self._plan(role, gateway.listen)
            workers = place(plan, self._problems)
        elif not gateway.endpoints:
            self._problems.add(
                "endpoints: missing; role gateway needs the workers' host:port, in gateway.yml or "
                "REACTANT_GATEWAY_WORKERS"
            )
        return NodeConfig(
            role=role,
            workers=workers,
            gateway=gateway if role is Role.GATEWAY or (role is Role.ALL and len(workers) > 1) else None,
            listen=gateway.listen,
            supervisor=self._supervisor(),
            workspace_root=self._workspace_root(),
            runtime_dir=str(self._options.runtime_dir or self._environment.node.get("REACTANT_RUNTIME_DIR", "")),
            log_format=str(
                self._pick("--log-format", self._options.log_format, "REACTANT_LOG_FORMAT", "log_format", "text")
            ),
            overrides=self._environment.applied,
            notes=(*notes, *self._notes(workers)),
        )

    def _pick(self, flag: str, option: str | None, variable: str | None, path: str, default: object) -> object:
        """A value of NODE_KEYS by precedence."""
        if option is not None:
            checked = self._problems.text(NODE_KEYS[path], flag, option)
            return default if checked is None else checked
        if variable is not None and variable in self._environment.node:
            return self._environment.node[variable]
        return self._file.node.get(path, default)

    def _supervisor(self) -> SupervisorConfig:
        default = SupervisorConfig()
        pick = self._pick
        return SupervisorConfig(
            max_restarts=cast(
                "int",
                pick("", None, "REACTANT_SUPERVISOR_MAX_RESTARTS", "supervisor.max_restarts", default.max_restarts),
            ),
            exit_timeout_seconds=cast(
                "float",
                pick(
                    "--exit-timeout-secs",
                    self._options.exit_timeout_seconds,
                    "REACTANT_SUPERVISOR_EXIT_TIMEOUT_SECONDS",
                    "supervisor.exit_timeout_seconds",
                    default.exit_timeout_seconds,
                ),
            ),
            heartbeat_timeout_seconds=cast(
                "float",
                pick(
                    "",
                    None,
                    "REACTANT_SUPERVISOR_HEARTBEAT_TIMEOUT_SECONDS",
                    "supervisor.heartbeat_timeout_seconds",
                    default.heartbeat_timeout_seconds,
                ),
            ),
        )

    def _workspace_root(self) -> str:
        root = str(self._environment.node.get("REACTANT_WORKSPACE_ROOT", ""))
        if root and not (Path(root) / "reactant_node" / "__init__.py").is_file():
            self._problems.add(f"REACTANT_WORKSPACE_ROOT: got {shown(root)}; use a checkout that holds reactant_node/")
        return root

    def _plan(self, role: Role, listen: ListenConfig) -> tuple[Plan, list[str]]:
        backend = self._backend()
        devices, notes = self._devices(backend)
        entries = self._file.entries if self._file.entries is not None else synthesized(self._count(devices))
        entries = tuple(self._over_global(entry) for entry in entries)
        pick = self._pick
        return Plan(
            role=role,
            devices=devices,
            entries=entries,
            common={**self._environment.worker, **self._flags(), "runtime.backend": backend},
            base_port=cast("int", pick("--base-port", self._options.base_port, None, "base_port", BASE_PORT)),
            metrics_base_port=cast(
                "int",
                pick(
                    "--metrics-base-port", self._options.metrics_base_port, None, "metrics_base_port", METRICS_BASE_PORT
                ),
            ),
            listen=listen,
            cpus=self._host.cpus,
            threads=cast("int | None", self._environment.node.get("REACTANT_WORKER_THREADS")),
            model_dirs=self._model_dirs(),
            allow_code=self._file.allow_code,
        ), notes

    def _backend(self) -> Backend:
        """One backend per node: the flag's, the environment's, `global`'s, or the installed runtime's."""
        if self._options.backend is not None:
            checked = self._problems.text(WORKER_KEYS["runtime.backend"], "--backend", self._options.backend)
            return Backend(str(checked or Backend.CPU))
        value = self._environment.worker.get("runtime.backend", self._file.common.values.get("runtime.backend"))
        return Backend(str(value)) if value else self._host.default_backend

    def _devices(self, backend: Backend) -> tuple[tuple[str, ...], list[str]]:
        found = self._host.detect(self._file.gpus)
        if not found.selectors and backend is Backend.CUDA:
            raise ConfigError(
                f"runtime.backend: got cuda, and no device is visible ({found.source}); make one visible (driver, "
                "container with --gpus all or --device nvidia.com/gpu=all), name them by REACTANT_GPUS or `gpus:`, or "
                "set the backend to cpu (--backend cpu, runtime.backend: cpu)"
            )
        if backend is Backend.CPU and not found.stated and found.selectors:
            return (), [f"{len(found.selectors)} devices are visible ({found.source}) and unused: the backend is cpu"]
        return found.selectors, []

    def _count(self, devices: tuple[str, ...]) -> int:
        if devices:
            return len(devices)
        if self._options.workers is not None:
            return cast("int", self._problems.text(Key(integer(1, 64)), "--workers", self._options.workers) or 1)
        return cast("int", self._environment.node.get("REACTANT_CPU_WORKERS", 1))

    def _over_global(self, entry: Entry) -> Entry:
        common = self._file.common
        return replace(entry, values={**common.values, **entry.values}, models={**common.models, **entry.models})

    def _flags(self) -> Values:
        return {"models_include": self._options.load_models} if self._options.load_models else {}

    def _model_dirs(self) -> tuple[str, ...]:
        named = (
            self._options.models
            or cast("tuple[str, ...]", self._environment.node.get(MODEL_DIRS, ()))
            or self._file.model_repo
        )
        if not named and self._file.path is not None:
            self._problems.add("model_repo: missing; name the folder that holds the models")
            return ()
        for root in named or (MODEL_REPO,):
            if root != "?" and not os.access(root, os.R_OK | os.X_OK):
                what = "cannot be read" if Path(root).exists() else "does not exist"
                self._problems.add(
                    f"model_repo: got {shown(root)}, which {what}; name a folder of models (--models DIR)"
                )
            elif root != "?" and not Path(root).is_dir():
                self._problems.add(f"model_repo: got {shown(root)}, which is no folder; name a folder of models")
        return tuple(str(Path(root).absolute()) for root in named or (MODEL_REPO,))

    def _gateway(self) -> GatewayConfig:
        values = self._gateway_values()
        listen = self._listen(values)
        default = GatewayConfig()
        grpc_default = default.grpc
        return GatewayConfig(
            listen=listen,
            endpoints=cast("tuple[str, ...]", values.get("endpoints", ())),
            metrics_endpoints=cast("tuple[str, ...]", values.get("metrics_endpoints", ())),
            worker_names=cast("tuple[str, ...]", values.get("worker_names", ())),
            rpcs=str(values.get("rpcs", default.rpcs)),
            scheduling_mode=str(values.get("scheduling.mode", default.scheduling_mode)),
            grpc=GrpcConfig(
                cast("int", values.get("grpc.max_recv_msg_bytes", grpc_default.max_recv_msg_bytes)),
                cast("int", values.get("grpc.max_send_msg_bytes", grpc_default.max_send_msg_bytes)),
            ),
            max_concurrent_requests_per_worker=cast(
                "int", values.get("grpc.max_concurrent_requests_per_worker", default.max_concurrent_requests_per_worker)
            ),
            request_timeout_seconds=cast(
                "float", values.get("worker_client.request_timeout_seconds", default.request_timeout_seconds)
            ),
            max_concurrent_streams=cast(
                "int", values.get("worker_client.max_concurrent_streams", default.max_concurrent_streams)
            ),
            health_interval_seconds=cast(
                "float", values.get("health_interval_seconds", default.health_interval_seconds)
            ),
        )

    def _gateway_values(self) -> Values:
        """The environment over gateway.yml over the node file's block over `global.grpc` (NODE-11)."""
        but = ("scheduling.models", "scheduling.default_replicas")
        mirrored = {path: value for path, value in self._file.common.values.items() if path.startswith("grpc.")}
        block = self._problems.values(dict(self._file.gateway), GATEWAY_KEYS, "gateway", but=but)
        path = _file_path(None, self._environment.node.get("REACTANT_GATEWAY_FILE"), GATEWAY_FILE)
        own: Values = {}
        if path is not None:
            try:
                own = self._problems.values(read_document(path), GATEWAY_KEYS, "", but=but)
            except ConfigError as error:
                self._problems.add(str(error))
        return {**mirrored, **block, **own, **self._environment.gateway}

    def _listen(self, values: Values) -> ListenConfig:
        default = ListenConfig()
        grpc_host, grpc_port = _split(values.get("listen.grpc"), default.grpc_host, default.grpc_port)
        metrics_host, metrics_port = _split(values.get("listen.metrics"), default.metrics_host, default.metrics_port)
        host = self._flag(text("a host name or address"), "--host", self._options.host)
        return ListenConfig(
            grpc_host=str(host or grpc_host),
            grpc_port=self._flag_port("--grpc-port", self._options.grpc_port, grpc_port),
            metrics_host=str(host or metrics_host),
            metrics_port=self._flag_port("--metrics-port", self._options.metrics_port, metrics_port),
        )

    def _flag_port(self, flag: str, option: str | None, default: int) -> int:
        port = self._flag(PORT, flag, option)
        return default if port is None else cast("int", port)

    def _flag(self, check: Check, flag: str, option: str | None) -> object:
        return None if option is None else self._problems.text(Key(check), flag, option)

    def _notes(self, workers: tuple[WorkerConfig, ...]) -> list[str]:
        values = {**self._file.common.values, **self._environment.worker}
        notes = [
            f"{path}: {shown(value)} is accepted and has no effect in this version"
            for path, value in values.items()
            if _is_idle(WORKER_KEYS[path], value)
        ]
        known = {worker.name for worker in workers}
        for model, names in self._file.placements.items():
            notes.append(f"models.{model}: is accepted and has no effect in this version")
            if not isinstance(names, list) or not names:
                self._problems.add(f"models.{model}: got {shown(names)}; use a list of worker names")
                continue
            for name in names:
                if name not in known:
                    self._problems.add(
                        f"models.{model}: got the worker {shown(name)}; use one of {', '.join(sorted(known))}"
                    )
        return notes


def _is_idle(key: Key, value: object) -> bool:
    return key.default is not None and value != key.default


def _split(value: object, host: str, port: int) -> tuple[str, int]:
    if value is None:
        return host, port
    before, _, after = str(value).rpartition(":")
    return before.strip("[]") or host, int(after)
