"""From flags, environment and files to one `NodeConfig`. The only place that joins them.

Precedence: flag, environment, file, default. Sources are read first, each value checked against the table in
`keys.py`; then devices are asked for and the workers placed. Every problem on the way is gathered, and all are raised
at once; the way goes on after a problem with a stand-in for the value, since nothing of it is used then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from reactant_node.config.checks import shown
from reactant_node.config.environment import (
    Overrides,
    applied_variables,
    idle_variables,
    misspelt_variables,
    read_environment,
)
from reactant_node.config.keys import GATEWAY, LPT_PACKING, WORKER, Values
from reactant_node.config.node_file import NodeFile, find_node_file, read_gateway_file, read_node_file
from reactant_node.config.options import Options, PublicAddress, read_options
from reactant_node.config.placement import Plan, check_ports, listen_claims, place, synthesized
from reactant_node.config.problems import Problems
from reactant_node.config.public import make_gateway, make_listen, with_endpoints
from reactant_node.config.schema import (
    Backend,
    GatewayConfig,
    GpuSetting,
    ListenConfig,
    NodeConfig,
    Role,
    SupervisorConfig,
    WorkerConfig,
)
from reactant_node.config.settings import idle_notes
from reactant_node.errors import ConfigError

MODEL_REPO = "/var/lib/reactantserver/models"
BASE_PORT = 8080
METRICS_BASE_PORT = 9100


@dataclass(frozen=True, slots=True)
class Devices:
    """What device detection answered.

    Attributes:
        selectors: one per visible device.
        source: which step answered; where there are none, what the steps said.
        stated: an operator named them (REACTANT_GPUS, `gpus:`, CUDA_VISIBLE_DEVICES); else they were found.
        doubt: why they may not be usable; empty where nothing speaks against them.
    """

    selectors: tuple[str, ...]
    source: str
    stated: bool
    doubt: str = ""


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


def load_node(options: Options, environ: Mapping[str, str], host: Host) -> NodeConfig:
    """The whole configuration, materialized.

    Raises:
        ConfigError: with every problem found.
    """
    problems = Problems()
    flags, public = read_options(options, problems)
    environment = read_environment(environ, problems)
    said = flags.over(environment)
    path, notes = find_node_file(options, said)
    file = NodeFile() if path is None else read_node_file(path, problems)
    loading = _Loading(said, public, file, host, problems, [*misspelt_variables(environ), *notes])
    loading.note_idle(environment)
    node = loading.node(applied_variables(environ))
    problems.raise_if_any()
    return node


class _Loading:
    """One load: joins the sources. Lives as long as the load; it changes its problems and notes alone."""

    def __init__(
        self,
        said: Overrides,
        public: PublicAddress,
        file: NodeFile,
        host: Host,
        problems: Problems,
        notes: list[str],
    ) -> None:
        self._said = said
        self._public = public
        self._file = file
        self._host = host
        self._problems = problems
        self._notes = notes
        self._node_values = {**file.node, **said.node}
        self._files = [str(file.path)] if file.path else []

    def note_idle(self, environment: Overrides) -> None:
        """A line for everything that was set and has no effect in this version."""
        self._notes += idle_variables(environment)
        self._notes += idle_notes(self._file.common, WORKER, "global.")
        for entry in self._file.entries or ():
            self._notes += idle_notes(entry.settings, WORKER, f"workers.{entry.label}.")
        self._notes += idle_notes(self._file.gateway, GATEWAY, "gateway.")
        unread = [*self._file.placements, *(["allow_code"] if self._file.allow_code else [])]
        self._notes += [f"models.{name}: is accepted and has no effect in this version" for name in unread]

    def node(self, overrides: tuple[str, ...]) -> NodeConfig:
        """Everything joined."""
        role = Role(str(self._node_values.get("role", Role.ALL)))
        gateway_values = self._gateway_values()
        listen = make_listen(gateway_values, self._public)
        workers, origin = ((), "") if role is Role.GATEWAY else self._workers(role, listen)
        return NodeConfig(
            role=role,
            workers=workers,
            gateway=self._gateway(role, gateway_values, listen, len(workers)),
            listen=listen,
            supervisor=self._supervisor(),
            workspace_root=self._workspace_root(),
            runtime_dir=str(self._node_values.get("runtime_dir", "")),
            log_format=str(self._node_values.get("log_format", "text")),
            threads_origin=origin,
            overrides=overrides,
            notes=tuple(dict.fromkeys(self._notes)),
            files=tuple(self._files),
        )

    def _gateway_values(self) -> Values:
        file, path = read_gateway_file(self._said, self._problems)
        self._notes += idle_notes(file, GATEWAY, f"{path}: ")
        self._files += [str(path)] if path else []
        return {**self._file.gateway.values, **file.values, **self._said.gateway}

    def _gateway(self, role: Role, values: Values, listen: ListenConfig, workers: int) -> GatewayConfig | None:
        gateway = make_gateway(values, listen, {**self._file.common.values, **self._said.worker})
        if values.get("scheduling.mode") == LPT_PACKING:
            self._notes.append(
                f"scheduling.mode: {LPT_PACKING} is not in this version; {gateway.scheduling_mode} stands in for it"
            )
        if role is Role.GATEWAY:
            check_ports(listen_claims(listen), self._problems)
            return with_endpoints(gateway, values, self._problems)
        if "endpoints" in values:
            self._notes.append(f"endpoints: has no effect in role {role}: the workers are this node's own")
        return gateway if role is Role.ALL and workers > 1 else None

    def _supervisor(self) -> SupervisorConfig:
        prefix = "supervisor."
        values = {path: value for path, value in self._node_values.items() if path.startswith(prefix)}
        return SupervisorConfig(**cast("dict[str, Any]", {k.removeprefix(prefix): v for k, v in values.items()}))

    def _workspace_root(self) -> str:
        root = str(self._node_values.get("workspace_root", ""))
        if root and not (Path(root) / "reactant_node" / "__init__.py").is_file():
            self._problems.add(f"REACTANT_WORKSPACE_ROOT: got {shown(root)}; use a checkout that holds reactant_node/")
        return root

    def _workers(self, role: Role, listen: ListenConfig) -> tuple[tuple[WorkerConfig, ...], str]:
        backend = self._backend()
        devices = self._devices(backend)
        entries = self._file.entries or synthesized(self._count(devices))
        if self._file.entries and "cpu_workers" in self._said.node:
            self._notes.append("--workers, REACTANT_CPU_WORKERS: no effect: the node file lists the workers")
        plan = Plan(
            role=role,
            backend=backend,
            devices=devices,
            entries=entries,
            common=self._file.common,
            said={**self._said.worker, **self._host_said(role)},
            base_port=cast("int", self._node_values.get("base_port", BASE_PORT)),
            metrics_base_port=cast("int", self._node_values.get("metrics_base_port", METRICS_BASE_PORT)),
            listen=listen,
            cpus=self._host.cpus,
            threads=cast("int | None", self._node_values.get("worker_threads")),
            placements=dict(self._placements({entry.label for entry in entries})),
            model_dirs=tuple(self._model_dirs()),
            allow_code=self._file.allow_code,
        )
        workers, notes = place(plan, self._problems)
        self._notes += notes
        return workers, plan.threads_origin

    def _host_said(self, role: Role) -> Values:
        """In role `workers` the workers' ports are the public ones, and `--host` speaks of them."""
        host = self._public.host
        return {"endpoints.host": host} if role is Role.WORKERS and host is not None else {}

    def _backend(self) -> Backend:
        """One backend per node: the flag's, the environment's, `global`'s, or the installed runtime's."""
        value = {**self._file.common.values, **self._said.worker}.get("runtime.backend")
        return Backend(str(value)) if value else self._host.default_backend

    def _devices(self, backend: Backend) -> tuple[str, ...]:
        """The devices for workers. A CPU node takes those that an operator named, one worker each, but none found."""
        try:
            found = self._host.detect(self._file.gpus)
        except ConfigError as error:
            self._problems.add_all(error)
            return ()
        if not found.selectors and backend is Backend.CUDA:
            self._problems.add(
                f"runtime.backend: got cuda, and no device is visible ({found.source}); make one visible (driver, "
                "container with --gpus all or --device nvidia.com/gpu=all), name them by REACTANT_GPUS or `gpus:`, or "
                "set the backend to cpu (--backend cpu, runtime.backend: cpu)"
            )
        if backend is Backend.CPU and not found.stated:
            if found.selectors:
                many = f"{len(found.selectors)} device{'s are' if len(found.selectors) > 1 else ' is'}"
                self._notes.append(f"{many} visible ({found.source}) and unused: the backend is cpu")
            return ()
        if found.doubt:
            self._notes.append(found.doubt)
        return found.selectors

    def _count(self, devices: tuple[str, ...]) -> int:
        """Workers to synthesize: one per device; REACTANT_CPU_WORKERS counts only where there is none (DEV-8)."""
        stated = cast("int | None", self._said.node.get("cpu_workers"))
        if devices and stated not in (None, len(devices)):
            self._notes.append(
                f"--workers, REACTANT_CPU_WORKERS: {stated} has no effect: there is one worker for each of the "
                f"{len(devices)} devices"
            )
        return len(devices) or stated or 1

    def _placements(self, known: set[str]) -> Iterator[tuple[str, list[str]]]:
        for model, names in self._file.placements.items():
            if not isinstance(names, list) or not names:
                self._problems.add(f"models.{model}: got {shown(names)}; use a list of worker names")
                continue
            for name in names:
                if name not in known:
                    these = ", ".join(sorted(known))
                    self._problems.add(f"models.{model}: got the worker {shown(name)}; use one of {these}")
            yield model, [str(name) for name in names]

    def _model_dirs(self) -> Iterator[str]:
        """Absolute folders that can be read; a wrong `model_repo` has been noted before."""
        named = cast("tuple[str, ...]", self._said.node.get("model_dirs", ())) or self._file.model_repo
        if named == () and self._file.path is not None:
            self._problems.add("model_repo: missing; name the folder that holds the models")
            return
        for root in (MODEL_REPO,) if named == () else named or ():
            if problem := _folder_problem(root):
                self._problems.add(f"model_repo: got {shown(root)}, {problem}; name a folder of models (--models DIR)")
            yield str(Path(root).absolute())


def _folder_problem(path: str) -> str:
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a parent is closed to us
        return "" if os.access(path, os.R_OK | os.X_OK) else "which cannot be read"
    return "which is no folder" if os.path.lexists(path) else "which does not exist"
