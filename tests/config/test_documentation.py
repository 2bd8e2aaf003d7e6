"""docs/configuration.md says what the tables of settings say: names, variables, defaults, values, effect."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from reactant_node.cli import _node_options
from reactant_node.config.documents import parse_document
from reactant_node.config.environment import READ_ELSEWHERE, VARIABLES
from reactant_node.config.keys import ENTRY, GATEWAY, LAUNCH_KEYS, NODE, REMOVED, WORKER, Key
from reactant_node.config.loader import BASE_PORT, METRICS_BASE_PORT
from reactant_node.config.public import _FIELDS
from reactant_node.config.schema import (
    GatewayConfig,
    ListenConfig,
    ModelPolicy,
    NodeConfig,
    Role,
    SupervisorConfig,
    WorkerConfig,
)

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")

Row = dict[str, str]


def tables(title: str) -> Iterator[list[Row]]:
    """The tables of a section: a mapping from heading to cell for each row."""
    section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    (body,) = [part for part in section if part.startswith(f"{title}\n")]
    for block in re.findall(r"(?:^\|.*\n)+", body, flags=re.MULTILINE):
        heading, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines())
        yield [dict(zip(heading, row, strict=True)) for row in rows]


def words(cell: str) -> list[str]:
    """What stands in code signs."""
    return re.findall(r"`([^`]*)`", cell)


def value(cell: str) -> object:
    """A default, read as a node file would; None for a dash."""
    return None if cell == "-" else parse_document(f"value: {words(cell)[0]}", "the table")["value"]


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Fields by path."""
    for field in fields(config):
        here = getattr(config, field.name)
        if is_dataclass(here):
            yield from flat(here, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, list(here) if isinstance(here, tuple) else here


COMPUTED = ("runtime.backend", "endpoints.host", "endpoints.port", "endpoints.metrics_port")
"""Their defaults are the host's, the role's or counted; the notes say how."""

_listen = ListenConfig()
_gateway = dict(flat(GatewayConfig()))
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "worker": {**dict(flat(WorkerConfig("", "", 1, ()))), **dict.fromkeys(COMPUTED)},
    "gateway": {
        **_gateway,
        **{path: _gateway[name] for path, name in _FIELDS.items()},
        "listen.grpc": f"{_listen.grpc_host}:{_listen.grpc_port}",
        "listen.metrics": f"{_listen.metrics_host}:{_listen.metrics_port}",
        **dict.fromkeys(("tls.cert_file", "tls.key_file", "tls.client_ca_file"), ""),
    },
    "node": {
        **dict(flat(SupervisorConfig(), "supervisor.")),
        "role": "all",
        "log_format": NodeConfig(Role.ALL, (), None, _listen).log_format,
        "base_port": BASE_PORT,
        "metrics_base_port": METRICS_BASE_PORT,
        "shared_host_weights": False,
        "cpu_workers": 1,
    },
    "entry": {},
    "worker's model": {**dict(flat(ModelPolicy())), "pin_to_gpu": False},
    "gateway's model": {},
}


def check_row(row: Row, name: str, key: Key, defaults: Mapping[str, object]) -> None:
    """One row against one key."""
    accepted = key.check.accepted.partition(" (")[0]  # reasons are the notes' matter
    served = key.idle is None and accepted != "nothing yet"
    assert (row["accepted"], row["effect"]) == (accepted, "yes" if served else "not yet"), name
    if "default" in row:
        assert value(row["default"]) == defaults.get(name, key.idle), name


@pytest.mark.parametrize(
    ("title", "number", "part", "keys", "prefix"),
    [
        ("The node file", 0, "node", NODE.keys, ""),
        ("A worker's entry", 0, "entry", ENTRY.keys, ""),
        ("Workers", 0, "worker", WORKER.keys, ""),
        ("Workers", 1, "worker's model", WORKER.model_keys, "scheduler.models.<name>."),
        ("The gateway", 0, "gateway", GATEWAY.keys, ""),
        ("The gateway", 1, "gateway's model", GATEWAY.model_keys, "scheduling.models.<name>."),
    ],
)
def test_every_key_has_its_row(title: str, number: int, part: str, keys: Mapping[str, Key], prefix: str) -> None:
    """And every row its key, with the variable, the default, what is accepted and whether it has an effect."""
    rows = {words(row["key"])[0].removeprefix(prefix): row for row in list(tables(title))[number]}
    others = (
        {"model_repo", "models.allow_code", "models.<name>", *NODE.elsewhere} - {"models"} if part == "node" else set()
    )
    assert set(rows) == set(keys) | others
    variables = {row.path: name for name, row in VARIABLES.items() if row.part == part}
    for path, key in keys.items():
        check_row(rows[path], path, key, DEFAULTS[part])
        if "variable" in rows[path]:
            assert words(rows[path]["variable"]) == ([variables[path]] if path in variables else []), path


def test_every_other_variable_has_its_row() -> None:
    """Those of no key: about the start, the host or a worker."""
    (rows,) = tables("Variables without a key")
    named = {words(row["variable"])[0]: row for row in rows}
    by_name = {str(key.variable): (path, key) for path, key in LAUNCH_KEYS.items()}
    assert set(named) == {*by_name, *READ_ELSEWHERE, "CUDA_VISIBLE_DEVICES"}
    for name, (path, key) in by_name.items():
        check_row(named[name], path, key, DEFAULTS["node"])


def test_every_flag_has_its_row() -> None:
    """With the variable or key that it stands over."""
    (rows,) = tables("Flags")
    options = [action.option_strings for action in _node_options()._actions]
    assert sorted(words(row["flag"]) for row in rows) == sorted(map(list, options))
    known = {*VARIABLES, *NODE.keys, *WORKER.keys, *GATEWAY.keys, "model_repo"}
    assert {word for row in rows for word in words(row["over"])} <= known


def test_the_flags_help_says_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it says one, it is the real one."""
    parser = argparse.ArgumentParser(parents=[_node_options()])
    parser.print_help()
    text = " ".join(capsys.readouterr().out.split())
    for said in (
        f"({_listen.grpc_port})",
        f"({_listen.metrics_port})",
        f"({BASE_PORT})",
        f"({METRICS_BASE_PORT})",
        f"({SupervisorConfig().exit_timeout_seconds:g})",
    ):
        assert said in text


def test_removed_keys_are_named() -> None:
    """An operator who has one in a file looks for it here."""
    assert all(f"`{path}`" in TEXT for path in REMOVED)


def test_links_lead_somewhere() -> None:
    """To files that are there."""
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (Path(__file__).parents[2] / "docs" / target).exists(), target
