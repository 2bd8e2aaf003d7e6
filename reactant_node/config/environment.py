"""Environment variables, read once: which there are follows from the table in `keys.py`. Pure.

`INFERENCE_SERVER_<SECTION>_<FIELD>` speaks for every worker, `REACTANT_GATEWAY_<SECTION>_<FIELD>` for the gateway,
the other `REACTANT_*` for the node. A misspelt name would be a setting that silently does nothing; so under the
prefixes that are ours alone an unknown name is an error, and elsewhere under `REACTANT_` one that resembles ours is
pointed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from reactant_node.config.keys import GATEWAY, LAUNCH_KEYS, NODE, REMOVED, WORKER, Key, Values
from reactant_node.config.problems import Problems
from reactant_node.config.settings import idle_note

WORKER_PREFIX = "INFERENCE_SERVER_"
GATEWAY_PREFIX = "REACTANT_GATEWAY_"
OUR_PREFIXES = (WORKER_PREFIX, GATEWAY_PREFIX, "REACTANT_SUPERVISOR_")


@dataclass(frozen=True, slots=True)
class Overrides:
    """What stands over the files: the environment's or the command line's word.

    Attributes:
        worker: by path of WORKER's keys.
        gateway: by path of GATEWAY's keys.
        node: by path of NODE's keys and of LAUNCH_KEYS.
    """

    worker: Values = field(default_factory=dict)
    gateway: Values = field(default_factory=dict)
    node: Values = field(default_factory=dict)

    def over(self, below: Overrides) -> Overrides:
        """Both, key by key, where this one wins."""
        return Overrides(
            {**below.worker, **self.worker}, {**below.gateway, **self.gateway}, {**below.node, **self.node}
        )


@dataclass(frozen=True, slots=True)
class Variable:
    """One row: whose key a variable sets (`worker`, `gateway` or `node`), and which."""

    part: str
    path: str
    key: Key


def _rows(part: str, keys: Mapping[str, Key], prefix: str) -> Iterator[tuple[str, Variable]]:
    for path, key in keys.items():
        if name := key.variable or (prefix and prefix + path.upper().replace(".", "_")):
            yield name, Variable(part, path, key)


VARIABLES: Mapping[str, Variable] = dict(
    [
        *_rows("worker", WORKER.keys, WORKER_PREFIX),
        *_rows("gateway", GATEWAY.keys, GATEWAY_PREFIX),
        *_rows("node", {**NODE.keys, **LAUNCH_KEYS}, ""),
    ]
)
"""Variable to key."""

READ_ELSEWHERE = frozenset({"REACTANT_GPUS", "REACTANT_GATEWAY_METRICS_PORT", "REACTANT_WORKER_NAME"})
"""By device detection, by the health command, and what the supervisor tells a worker."""

_REMOVED = {WORKER_PREFIX + path.upper().replace(".", "_"): why for path, why in REMOVED.items()}

_SERVICE_LINK = re.compile(
    r".*?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?|PORT)"
)
"""What Kubernetes puts into every container for each service: one called `reactant-gateway` takes our prefix."""

ALIKE = 0.88
"""How alike a foreign REACTANT_* name has to be to be taken for a slip: one letter too many or too few."""


def read_environment(environ: Mapping[str, str], problems: Problems) -> Overrides:
    """Read every variable of ours; what is wrong or unknown goes to `problems`. An empty text counts as not set."""
    found = Overrides()
    parts = {"worker": found.worker, "gateway": found.gateway, "node": found.node}
    for name, value in sorted(environ.items()):
        if (row := VARIABLES.get(name)) and value:
            if (right := problems.text(row.key, name, value)) is not None:
                parts[row.part][row.path] = right
        elif row is None and name.startswith(OUR_PREFIXES) and not _is_foreign(name, value):
            problems.add(f"{name}: {_unknown(name)}")
    return found


def idle_variables(found: Overrides) -> Iterator[str]:
    """A note for each variable that was read and has no effect in this version."""
    parts = {"worker": found.worker, "gateway": found.gateway, "node": found.node}
    for name, row in VARIABLES.items():
        if row.path in parts[row.part]:
            yield from idle_note(name, row.key, parts[row.part][row.path])


def applied_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that had a say, for the log."""
    return tuple(sorted(name for name, value in environ.items() if name in VARIABLES and value))


def misspelt_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """A note for each variable outside our own prefixes that is probably meant for us."""
    for name in sorted(environ):
        if not name.startswith("REACTANT_") or name.startswith(OUR_PREFIXES) or name in {*VARIABLES, *READ_ELSEWHERE}:
            continue
        if near := get_close_matches(name, [*VARIABLES, "REACTANT_GPUS"], n=1, cutoff=ALIKE):
            yield f"{name}: is not read; did you mean {near[0]}?"


def _is_foreign(name: str, value: str) -> bool:
    """`…_PORT` alone may be a slip of ours as well; a service's value is a URL."""
    link = _SERVICE_LINK.fullmatch(name)
    return name in READ_ELSEWHERE or (link is not None and (link[1] != "PORT" or "://" in value))


def _unknown(name: str) -> str:
    for prefix, why in _REMOVED.items():
        if name == prefix or name.startswith(f"{prefix}_"):
            return why
    near = get_close_matches(name, VARIABLES, n=1)
    return f"unknown variable; did you mean {near[0]}?" if near else "unknown variable; unset it"
