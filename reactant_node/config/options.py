"""What the command line says, checked against the same table as everything else. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from reactant_node.config.checks import HOST, PORT
from reactant_node.config.environment import Overrides
from reactant_node.config.keys import LAUNCH_KEYS, NODE, WORKER, Key, Values
from reactant_node.config.problems import Problems


@dataclass(frozen=True, slots=True)
class Options:
    """The command line's words, as text; None or empty where it said nothing."""

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


_NODE_FLAGS: Mapping[str, tuple[str, str]] = {
    "config": ("--config", "config"),
    "role": ("--role", "role"),
    "workers": ("--workers", "cpu_workers"),
    "base_port": ("--base-port", "base_port"),
    "metrics_base_port": ("--metrics-base-port", "metrics_base_port"),
    "exit_timeout_seconds": ("--exit-timeout-secs", "supervisor.exit_timeout_seconds"),
    "log_format": ("--log-format", "log_format"),
    "runtime_dir": ("--runtime-dir", "runtime_dir"),
}
"""Field of Options to flag and key."""


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """The flags that change a part of `listen.grpc` and `listen.metrics`; None where one was not given."""

    host: str | None
    grpc_port: int | None
    metrics_port: int | None


def read_options(options: Options, problems: Problems) -> tuple[Overrides, PublicAddress]:
    """Check every flag; what is wrong goes to `problems`, by the flag's name."""
    node = {
        path: _read(getattr(options, name), flag, {**NODE.keys, **LAUNCH_KEYS}[path], problems)
        for name, (flag, path) in _NODE_FLAGS.items()
    }
    node["model_dirs"] = options.models or None  # whether they are there is seen when the folders are looked at
    worker = {
        "runtime.backend": _read(options.backend, "--backend", WORKER.keys["runtime.backend"], problems),
        "models_include": _included(options.load_models, problems),
    }
    return Overrides(worker=_given(worker), node=_given(node)), PublicAddress(
        cast("str | None", _read(options.host, "--host", Key(HOST), problems)),
        cast("int | None", _read(options.grpc_port, "--grpc-port", Key(PORT), problems)),
        cast("int | None", _read(options.metrics_port, "--metrics-port", Key(PORT), problems)),
    )


def _read(text: str | None, flag: str, key: Key, problems: Problems) -> object:
    return None if text is None else problems.text(key, flag, text)


def _included(names: tuple[str, ...], problems: Problems) -> object:
    """All models where `*` is among the names, as Triton reads it."""
    named = [] if "*" in names else list(names)
    return problems.value(WORKER.keys["models_include"], "--load-model", named) if names else None


def _given(values: Values) -> Values:
    return {path: value for path, value in values.items() if value is not None}
