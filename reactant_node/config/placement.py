"""Which workers there are: one per device or as listed, each with its device, ports, threads and settings. Pure.

Values arrive checked, by key path; what remains to be found wrong here is how they fit together. A worker's settings
are layered: its own entry over `global:`, and over both what the environment and the flags say for every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from reactant_node.config.checks import MAX_PORT, shown
from reactant_node.config.keys import ENTRY, WORKER, Values
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
from reactant_node.config.settings import Settings, read_settings

MAX_THREADS = 16
"""Threads of one worker by default: beyond, one session gains little and other workers lose (ROLE-5)."""

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - role `workers` is there to be reached

PORTS = ("port", "metrics_port")


@dataclass(frozen=True, slots=True)
class Entry:
    """One worker as it was listed or synthesized.

    Attributes:
        own: by key of ENTRY.
        settings: of WORKER's keys; over `global` once that is joined.
    """

    own: Values = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)

    @property
    def label(self) -> str:
        """Its name, for messages."""
        return str(self.own.get("name", "?"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What workers are made from.

    Attributes:
        role: decides where workers listen.
        backend: of all workers.
        devices: selectors, one per usable device; empty on a CPU node.
        entries: one per worker, as listed or synthesized.
        common: `global:`.
        said: what goes over each entry: environment and flags; by path of WORKER's keys.
        base_port, metrics_base_port: of worker 0; 0 is any free port for all of them.
        listen: the public ports, taken by a sole worker in role `all`.
        cpus: CPUs this process may use.
        threads: threads per worker where the environment said so.
        placements: model to the workers whose device it should stay on (NODE-7).
        model_dirs, allow_code: the same for all.
    """

    role: Role
    backend: Backend
    devices: tuple[str, ...]
    entries: tuple[Entry, ...]
    common: Settings
    said: Values
    base_port: int
    metrics_base_port: int
    listen: ListenConfig
    cpus: int
    threads: int | None
    placements: Mapping[str, Sequence[str]]
    model_dirs: tuple[str, ...]
    allow_code: bool

    @property
    def sole(self) -> bool:
        """One worker that takes the public ports itself (SUP-13)."""
        return self.role is Role.ALL and len(self.entries) == 1

    @property
    def threads_origin(self) -> str:
        """Who set the threads; empty where they are counted from the CPUs."""
        if self.threads is not None:
            return "REACTANT_WORKER_THREADS"
        return "threads of the node file's workers" if any("threads" in entry.own for entry in self.entries) else ""


def read_entry(document: object, path: str, problems: Problems) -> Entry:
    """A worker's entry of the node file."""
    mapping = problems.mapping(document, path)
    own = read_settings({key: mapping[key] for key in mapping if key in ENTRY.keys}, ENTRY, path, problems).values
    if mapping.get("name") is None:
        problems.add(f"{path}.name: missing; give each worker a name of its own")
    rest = {key: value for key, value in mapping.items() if key not in ENTRY.keys}
    settings = read_settings(rest, replace(WORKER, hints=tuple(ENTRY.keys)), path, problems)
    return Entry(own, settings)


def synthesized(count: int) -> tuple[Entry, ...]:
    """`worker0`… (NODE-3)."""
    return tuple(Entry({"name": f"worker{index}"}) for index in range(count))


def place(plan: Plan, problems: Problems) -> tuple[tuple[WorkerConfig, ...], tuple[str, ...]]:
    """Every worker, whole, and notes on what of the entries has no effect.

    Names, devices and ports that collide go to `problems`.
    """
    _check_names(plan.entries, problems)
    _check_backends(plan, problems)
    devices = _assign_devices(plan, problems)
    workers = tuple(_Placing(plan, index, entry).worker(devices[index]) for index, entry in enumerate(plan.entries))
    check_ports(_claims(plan, workers), problems)
    notes = (*_device_notes(plan), *_endpoint_notes(plan, workers), *_weight_notes(workers))
    return workers, tuple(dict.fromkeys(notes))


def threads_of(plan: Plan) -> int:
    """Compute threads per worker where nobody said otherwise: the usable CPUs shared out, 1 to 16."""
    return max(1, min(plan.cpus // max(1, len(plan.entries)), MAX_THREADS))


def _check_names(entries: Sequence[Entry], problems: Problems) -> None:
    names = [str(entry.own["name"]) for entry in entries if "name" in entry.own]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"workers: the name {shown(name)} is given {names.count(name)} times; names are unique")
    for name in sorted({"supervisor", "gateway"} & set(names)):
        problems.add(f"workers: the name {shown(name)} is the node's own; choose another")


def _check_backends(plan: Plan, problems: Problems) -> None:
    for entry in plan.entries:
        backend = entry.settings.values.get("runtime.backend", plan.backend)
        if backend != plan.backend:
            problems.add(
                f"workers.{entry.label}.runtime.backend: got {shown(backend)}, and the node's is {plan.backend}; all "
                "workers of a node have one backend: set global.runtime.backend"
            )


def _assign_devices(plan: Plan, problems: Problems) -> list[str]:
    """Device i goes to worker i, or the k-th usable one to a worker with `gpu: k` (NODE-4)."""
    if not plan.devices:
        return [""] * len(plan.entries)
    chosen: dict[int, str] = {}
    assigned = []
    for index, entry in enumerate(plan.entries):
        device = cast("int", entry.own.get("gpu", index))
        if device >= len(plan.devices):
            problems.add(
                f"workers.{entry.label}: would take device {device} of {len(plan.devices)} visible ones, which are "
                "counted from 0; list fewer workers or make more devices visible"
            )
        elif device in chosen:
            problems.add(
                f"workers.{entry.label}: device {device} is {chosen[device]}'s already; a device has one worker, so "
                "give each its own `gpu`"
            )
        chosen.setdefault(device, entry.label)
        assigned.append(plan.devices[device] if device < len(plan.devices) else "")
    return assigned


def _device_notes(plan: Plan) -> Iterator[str]:
    if not plan.devices:
        for entry in plan.entries:
            if "gpu" in entry.own:
                yield f"workers.{entry.label}.gpu: {entry.own['gpu']} has no effect: the backend is {plan.backend}"
    used = {cast("int", entry.own.get("gpu", index)) for index, entry in enumerate(plan.entries)}
    if unused := [device for index, device in enumerate(plan.devices) if index not in used]:
        yield f"workers: no worker is listed for the visible device{'s' * (len(unused) > 1)} {', '.join(unused)}"


@dataclass(frozen=True, slots=True)
class _Placing:
    """One worker on its way from entry to configuration."""

    plan: Plan
    index: int
    entry: Entry

    def worker(self, device: str) -> WorkerConfig:
        plan = self.plan
        settings = self.entry.settings.over(plan.common)
        values = {**settings.values, **plan.said}
        runtime = {**_below(values, "runtime"), "backend": plan.backend}
        return WorkerConfig(
            name=self.entry.label,
            device=device,
            threads=plan.threads or cast("int | None", self.entry.own.get("threads")) or threads_of(plan),
            model_dirs=plan.model_dirs,
            allow_code=plan.allow_code,
            runtime=_make(RuntimeConfig, runtime),
            scheduler=_make(SchedulerConfig, {**_below(values, "scheduler"), "models": self._policies(settings)}),
            endpoints=_make(EndpointsConfig, {**_below(values, "endpoints"), **self._listening()}),
            grpc=_make(GrpcConfig, _below(values, "grpc")),
            **_known(WorkerConfig, {path: value for path, value in values.items() if "." not in path}),
        )

    def _policies(self, settings: Settings) -> dict[str, ModelPolicy]:
        """`models:` asks for the device where the model's own policy says nothing of residency."""
        placed: dict[str, Values] = {
            model: {"residency": "device"} for model, names in self.plan.placements.items() if self.entry.label in names
        }
        policies = settings.over(Settings(models=placed)).models
        return {name: _policy(values) for name, values in policies.items()}

    def _listening(self) -> Values:
        listen = self.plan.listen
        if self.plan.sole:
            return {
                "host": listen.grpc_host,
                "port": listen.grpc_port,
                "metrics_host": listen.metrics_host,
                "metrics_port": listen.metrics_port,
            }
        host = self._host()
        return {
            "host": host,
            "port": self._port("port", self.plan.base_port),
            "metrics_host": host,
            "metrics_port": self._port("metrics_port", self.plan.metrics_base_port),
        }

    def _host(self) -> object:
        """Nobody but the gateway needs a worker's port in role `all`; in role `workers` it is the public one."""
        if self.plan.role is Role.ALL:
            return LOOPBACK
        said = _said(self.plan, self.entry, "host")
        return said if said is not None else self.plan.common.values.get("endpoints.host", EVERYWHERE)

    def _port(self, kind: str, base: int) -> object:
        """What the entry says, else counted from the base; one port of `global` cannot serve them all (NODE-5)."""
        said = _said(self.plan, self.entry, kind)
        return said if said is not None else base + self.index if base else 0


def _said(plan: Plan, entry: Entry, key: str) -> object:
    """Where to listen, by the environment, the entry's own key or its `endpoints`."""
    path = f"endpoints.{key}"
    return plan.said.get(path, entry.own.get(key, entry.settings.values.get(path)))


def _policy(values: Values) -> ModelPolicy:
    residency = "device" if values.get("pin_to_gpu") else values.get("residency")
    return ModelPolicy(**_known(ModelPolicy, {**values, "residency": residency}))


def _endpoint_notes(plan: Plan, workers: Iterable[WorkerConfig]) -> Iterator[str]:
    """Where somebody said where a worker listens, and it listens elsewhere."""
    why = (
        "the only worker of role all takes the public ports, listen.grpc and listen.metrics"
        if plan.sole
        else "in role all the gateway listens at listen.grpc and listen.metrics, and workers on 127.0.0.1"
    )
    for entry, worker in zip(plan.entries, workers, strict=True):
        for key in ("host", *PORTS):
            said = _said(plan, entry, key)
            said = plan.common.values.get(f"endpoints.{key}") if said is None else said
            if said is not None and said != getattr(worker.endpoints, key):
                reason = why if key == "host" or plan.sole else "each worker has its own: see base_port"
                yield f"endpoints.{key}: {shown(said)} has no effect: {reason}"


def _weight_notes(workers: Sequence[WorkerConfig]) -> Iterator[str]:
    """Several device workers, and nothing that would share what they keep in host memory (SUP-14)."""
    apart = [
        worker
        for worker in workers
        if worker.runtime.backend is Backend.CUDA
        and worker.runtime.weight_cache_fraction > 0
        and not worker.runtime.shared_host_weights
    ]
    if len(apart) > 1:
        yield (
            f"each of the {len(apart)} workers reads the models' weights into host memory for itself, so that loading "
            f"may take {len(apart)} times their size; runtime.shared_host_weights: true and "
            "runtime.weight_cache_fraction: 0, which are about that, have no effect in this version"
        )


def _claims(plan: Plan, workers: Iterable[WorkerConfig]) -> Iterator[tuple[str, int]]:
    if plan.role is Role.ALL:
        yield from listen_claims(plan.listen)
    for worker in () if plan.sole else workers:
        yield f"workers.{worker.name}.port", worker.endpoints.port
        yield f"workers.{worker.name}.metrics_port", worker.endpoints.metrics_port


def listen_claims(listen: ListenConfig) -> Iterator[tuple[str, int]]:
    """The public ports, by the keys that set them."""
    yield "listen.grpc", listen.grpc_port
    yield "listen.metrics", listen.metrics_port


def check_ports(claims: Iterable[tuple[str, int]], problems: Problems) -> None:
    """All ports of the node are distinct; 0 is any free one and never collides (NODE-5)."""
    taken: dict[int, str] = {}
    for what, port in claims:
        if port > MAX_PORT:
            problems.add(
                f"{what}: got {port}; ports end at {MAX_PORT}, so choose a lower base_port or metrics_base_port"
            )
        elif port and port in taken:
            problems.add(f"{what}: got {port}, which is {taken[port]}'s too; give each its own port")
        taken.setdefault(port, what)


T = TypeVar("T")


def _make(kind: type[T], values: Mapping[str, object]) -> T:
    """A section's dataclass; keys without a field have no effect yet."""
    return kind(**_known(kind, values))


def _below(values: Values, section: str) -> Values:
    prefix = f"{section}."
    return {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}


def _known(kind: type[object], values: Mapping[str, object]) -> dict[str, Any]:
    names = {it.name for it in fields(cast("Any", kind))}
    return {name: value for name, value in values.items() if name in names}
