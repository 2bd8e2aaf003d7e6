"""Which workers there are: one per device or as listed, each with its device, ports, threads and settings. Pure.

Values arrive checked, by key path; what remains to be found wrong here is how they fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

from reactant_node.config.checks import NAME, PORT, integer, shown, text
from reactant_node.config.keys import MODEL_POLICY_KEYS, WORKER_KEYS, Key, Values
from reactant_node.config.problems import Problems
from reactant_node.config.schema import (
    Backend,
    EndpointsConfig,
    GrpcConfig,
    ListenConfig,
    ModelPolicy,
    Role,
    RuntimeConfig,
    SchedulerConfig,
    WorkerConfig,
)

MAX_THREADS = 16
"""Threads of one worker by default: beyond, one session gains little and other workers lose (ROLE-5)."""

ENTRY_KEYS: Mapping[str, Key] = {
    "name": Key(NAME),
    "gpu": Key(integer(0, 1023)),
    "host": Key(text("a host name or address")),
    "port": Key(PORT),
    "metrics_port": Key(PORT),
    "threads": Key(integer(1, 1024)),
}
"""What a worker's entry says of itself, beside any key of WORKER_KEYS (NODE-6); threads is ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One worker as it was listed or synthesized.

    Attributes:
        own: by key of ENTRY_KEYS.
        values: by key path of WORKER_KEYS, over `global`.
        models: policies by model name.
    """

    own: Values = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    models: Mapping[str, ModelPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What workers are made from.

    Attributes:
        role: decides where workers listen.
        devices: selectors, one per visible device; empty on a CPU node.
        entries: one per worker.
        common: what goes over each entry: environment and flags; by key path.
        base_port, metrics_base_port: of worker 0; 0 is any free port for all of them.
        listen: the public ports, taken by a sole worker in role `all`.
        cpus: CPUs this process may use.
        threads: threads per worker where the operator said so.
        model_dirs, allow_code: the same for all.
    """

    role: Role
    devices: tuple[str, ...]
    entries: tuple[Entry, ...]
    common: Values
    base_port: int
    metrics_base_port: int
    listen: ListenConfig
    cpus: int
    threads: int | None
    model_dirs: tuple[str, ...]
    allow_code: bool

    @property
    def sole(self) -> bool:
        """One worker that takes the public ports itself (SUP-13)."""
        return self.role is Role.ALL and len(self.entries) == 1


def read_entry(document: object, path: str, problems: Problems) -> Entry:
    """A worker's entry of the node file."""
    mapping = problems.mapping(document, path)
    own_part = {key: value for key, value in mapping.items() if key in ENTRY_KEYS}
    own = problems.values(own_part, ENTRY_KEYS, path)
    if "name" not in own and "name" not in own_part:
        problems.add(f"{path}.name: missing; give each worker a name of its own")
    rest = {key: value for key, value in mapping.items() if key not in ENTRY_KEYS}
    values, models = read_settings(rest, path, problems)
    if "runtime.backend" in values:
        problems.add(f"{path}.runtime.backend: all workers of a node have one backend; set global.runtime.backend")
    return Entry(own, values, models)


def read_settings(
    document: Mapping[str, object], path: str, problems: Problems
) -> tuple[Values, dict[str, ModelPolicy]]:
    """Values and model policies of `global:` or of the rest of a worker's entry."""
    values = problems.values(document, WORKER_KEYS, path, but=("scheduler.models",))
    scheduler = document.get("scheduler")
    models = scheduler.get("models") if isinstance(scheduler, dict) else None
    policies = {
        name: _policy(problems.values(policy, MODEL_POLICY_KEYS, f"{path}.scheduler.models.{name}"))
        for name, policy in problems.mapping(models, f"{path}.scheduler.models").items()
    }
    return values, policies


def _policy(values: Values) -> ModelPolicy:
    residency = "device" if values.get("pin_to_gpu") else values.get("residency")
    return ModelPolicy(
        weight=cast("float", values.get("weight", 1.0)),
        residency=cast("str | None", residency),
        max_batch_size=cast("int | None", values.get("max_batch_size")),
    )


def synthesized(count: int) -> tuple[Entry, ...]:
    """`worker0`… (NODE-3)."""
    return tuple(Entry({"name": f"worker{index}"}) for index in range(count))


def place(plan: Plan, problems: Problems) -> tuple[WorkerConfig, ...]:
    """Every worker, whole. Names, devices and ports that collide go to `problems`."""
    _check_names(plan.entries, problems)
    devices = _assign_devices(plan, problems)
    workers = tuple(_worker(plan, index, entry, devices[index]) for index, entry in enumerate(plan.entries))
    _check_ports(plan, workers, problems)
    return workers


def threads_of(plan: Plan) -> int:
    """Compute threads per worker where nobody said otherwise: the usable CPUs shared out, 1 to 16."""
    return plan.threads or max(1, min(plan.cpus // max(1, len(plan.entries)), MAX_THREADS))


def _check_names(entries: Sequence[Entry], problems: Problems) -> None:
    names = [str(entry.own["name"]) for entry in entries if "name" in entry.own]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"workers: the name {shown(name)} is given {names.count(name)} times; names are unique")
    for name in sorted({"supervisor", "gateway"} & set(names)):
        problems.add(f"workers: the name {shown(name)} is the node's own; choose another")


def _assign_devices(plan: Plan, problems: Problems) -> list[str]:
    """Device i goes to worker i, or the k-th visible one to a worker with `gpu: k` (NODE-4)."""
    if not plan.devices:
        for entry in plan.entries:
            if "gpu" in entry.own:
                problems.add(f"workers.{_label(entry)}.gpu: got {entry.own['gpu']}; no device is visible")
        return [""] * len(plan.entries)
    chosen: dict[int, str] = {}
    assigned = []
    for index, entry in enumerate(plan.entries):
        device = cast("int", entry.own.get("gpu", index))
        if device >= len(plan.devices):
            problems.add(
                f"workers.{_label(entry)}: would take device {device} of {len(plan.devices)} visible ones, which are "
                f"counted from 0; list fewer workers or make more devices visible"
            )
        elif device in chosen:
            problems.add(
                f"workers.{_label(entry)}: device {device} is {chosen[device]}'s already; a device has one worker, so "
                f"give each its own `gpu`"
            )
        chosen.setdefault(device, _label(entry))
        assigned.append(plan.devices[device] if device < len(plan.devices) else "")
    return assigned


def _label(entry: Entry) -> str:
    return str(entry.own.get("name", "?"))


def _worker(plan: Plan, index: int, entry: Entry, device: str) -> WorkerConfig:
    values = {**entry.values, **plan.common}
    section = _sections(values)
    runtime = section(RuntimeConfig, "runtime")
    return WorkerConfig(
        name=_label(entry),
        device=device,
        threads=cast("int", entry.own.get("threads")) or threads_of(plan),
        model_dirs=plan.model_dirs,
        allow_code=plan.allow_code,
        runtime=runtime,
        scheduler=section(SchedulerConfig, "scheduler", models=dict(entry.models)),
        endpoints=_endpoints(plan, index, entry, values),
        grpc=section(GrpcConfig, "grpc"),
        **_known(WorkerConfig, {path: value for path, value in values.items() if "." not in path}),
    )


def _endpoints(plan: Plan, index: int, entry: Entry, values: Values) -> EndpointsConfig:
    if plan.sole:
        listen = plan.listen
        own: Values = {"host": listen.grpc_host, "port": listen.grpc_port, "metrics_host": listen.metrics_host}
        own["metrics_port"] = listen.metrics_port
    else:
        own = {
            "host": _host(plan.role, entry, values),
            "port": entry.own.get("port", values.get("endpoints.port", _offset(plan.base_port, index))),
            "metrics_port": entry.own.get(
                "metrics_port", values.get("endpoints.metrics_port", _offset(plan.metrics_base_port, index))
            ),
        }
        own["metrics_host"] = own["host"]
    cap = values.get("endpoints.max_concurrent_requests")
    if cap is not None:
        own["max_concurrent_requests"] = cap
    return EndpointsConfig(**cast("dict[str, Any]", own))


def _host(role: Role, entry: Entry, values: Values) -> object:
    """Nobody but the gateway needs a worker's port in role `all`; in role `workers` it is the public one."""
    if role is Role.ALL:
        return "127.0.0.1"
    return entry.own.get("host", values.get("endpoints.host", "0.0.0.0"))  # noqa: S104 - the role is to be reached


def _offset(base: int, index: int) -> int:
    return base + index if base else 0


T = TypeVar("T")


class _SectionMaker:
    """Builds a section's dataclass from values by key path; keys without a field have no effect yet."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __call__(self, kind: type[T], section: str, **more: object) -> T:
        prefix = f"{section}."
        below = {path.removeprefix(prefix): value for path, value in self._values.items() if path.startswith(prefix)}
        if kind is RuntimeConfig and "backend" in below:
            below["backend"] = Backend(str(below["backend"]))
        return kind(**_known(kind, {**below, **more}))


_sections = _SectionMaker


def _known(kind: type[object], values: Mapping[str, object]) -> dict[str, Any]:
    names = {it.name for it in fields(cast("Any", kind))}
    return {name: value for name, value in values.items() if name in names}


def _check_ports(plan: Plan, workers: Iterable[WorkerConfig], problems: Problems) -> None:
    """All ports of the node are distinct; 0 is any free one and never collides (NODE-5)."""
    taken: dict[int, str] = {}
    claims = [
        (f"workers.{worker.name}.{kind}", port)
        for worker in workers
        for kind, port in (("port", worker.endpoints.port), ("metrics_port", worker.endpoints.metrics_port))
    ]
    if plan.role is Role.ALL and not plan.sole:
        claims += [("listen.grpc", plan.listen.grpc_port), ("listen.metrics", plan.listen.metrics_port)]
    for what, port in claims:
        if not port:
            continue
        if port > PORT_MAX:
            problems.add(
                f"{what}: got {port}; ports end at {PORT_MAX}, so choose a lower base_port or metrics_base_port"
            )
        elif port in taken:
            problems.add(f"{what}: got {port}, which is {taken[port]}'s too; give each its own port")
        taken.setdefault(port, what)


PORT_MAX = 65535
