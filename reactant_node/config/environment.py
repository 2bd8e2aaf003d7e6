"""The one table of environment variables: name, key path, and how the text is read. Pure.

`INFERENCE_SERVER_<SECTION>_<FIELD>` overrides a worker's key on every worker, `REACTANT_GATEWAY_<SECTION>_<FIELD>` a
gateway's; both follow from the tables in `keys.py`. The node's own `REACTANT_*` are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from reactant_node.config.checks import choice, integer, number, text, texts
from reactant_node.config.keys import GATEWAY_KEYS, REFUSED_KEYS, REMOVED_KEYS, WORKER_KEYS, Key, Values
from reactant_node.config.problems import Problems

WORKER_PREFIX = "INFERENCE_SERVER_"
GATEWAY_PREFIX = "REACTANT_GATEWAY_"


def _name(prefix: str, path: str) -> str:
    return prefix + path.upper().replace(".", "_")


MODEL_DIRS = f"{WORKER_PREFIX}MODEL_DIRS"

WORKER_VARIABLES: Mapping[str, str] = {_name(WORKER_PREFIX, path): path for path in WORKER_KEYS}
"""Variable to key path of WORKER_KEYS."""

_OTHER_GATEWAY_NAMES = {
    "endpoints": f"{GATEWAY_PREFIX}WORKERS",
    "metrics_endpoints": f"{GATEWAY_PREFIX}WORKER_METRICS",
}

GATEWAY_VARIABLES: Mapping[str, str] = {
    _OTHER_GATEWAY_NAMES.get(path, _name(GATEWAY_PREFIX, path)): path for path in GATEWAY_KEYS
}
"""Variable to key path of GATEWAY_KEYS."""

NODE_KEYS: Mapping[str, Key] = {
    "REACTANT_ROLE": Key(choice("all", "workers", "gateway")),
    "REACTANT_CPU_WORKERS": Key(integer(1, 64)),
    "REACTANT_WORKER_THREADS": Key(integer(1, 1024)),
    "REACTANT_SUPERVISOR_MAX_RESTARTS": Key(integer(0)),
    "REACTANT_SUPERVISOR_EXIT_TIMEOUT_SECONDS": Key(number(0, above_low=True)),
    "REACTANT_SUPERVISOR_HEARTBEAT_TIMEOUT_SECONDS": Key(number(0)),
    "REACTANT_LOG_FORMAT": Key(choice("text", "json")),
    "REACTANT_RUNTIME_DIR": Key(text("a folder's path")),
    "REACTANT_WORKSPACE_ROOT": Key(text("a folder's path")),
    "REACTANT_NODE_FILE": Key(text("a file's path")),
    "REACTANT_GATEWAY_FILE": Key(text("a file's path")),
    MODEL_DIRS: Key(texts("a folder's path", separator=":")),
}
"""Variables of the node itself, under their own names. REACTANT_GPUS has a grammar of its own, in devices.py."""

_OUTSIDE = frozenset({"REACTANT_GPUS", "REACTANT_GATEWAY_METRICS_PORT", "REACTANT_GATEWAY_FILE"})
"""Read elsewhere: by device detection and by the health command."""

_REMOVED = {_name(WORKER_PREFIX, path): why for path, why in REMOVED_KEYS.items()}
_REFUSED = {_name(GATEWAY_PREFIX, path): why for path, why in REFUSED_KEYS.items()}


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says, checked.

    Attributes:
        worker: by key path of WORKER_KEYS.
        gateway: by key path of GATEWAY_KEYS.
        node: by variable name of NODE_KEYS.
        applied: the variables that were used, for the log.
    """

    worker: Values
    gateway: Values
    node: Values
    applied: tuple[str, ...]


def read_environment(environ: Mapping[str, str], problems: Problems) -> Environment:
    """Read every variable of ours; what is wrong or unknown goes to `problems`. An empty text counts as not set."""
    found = Environment({}, {}, {}, tuple(sorted(name for name in environ if _is_ours(name))))
    for name, value in sorted(environ.items()):
        if not _is_ours(name) or not value:
            continue
        if name in WORKER_VARIABLES:
            _put(found.worker, WORKER_VARIABLES[name], problems.text(WORKER_KEYS[WORKER_VARIABLES[name]], name, value))
        elif name in GATEWAY_VARIABLES:
            path = GATEWAY_VARIABLES[name]
            _put(found.gateway, path, problems.text(GATEWAY_KEYS[path], name, value))
        elif name in NODE_KEYS:
            _put(found.node, name, problems.text(NODE_KEYS[name], name, value))
        elif name not in _OUTSIDE:
            problems.add(f"{name}: {_unknown(name)}")
    return found


def _is_ours(name: str) -> bool:
    return name.startswith((WORKER_PREFIX, GATEWAY_PREFIX)) or name in NODE_KEYS


def _put(values: Values, path: str, value: object) -> None:
    if value is not None:
        values[path] = value


def _unknown(name: str) -> str:
    for prefix, why in {**_REMOVED, **_REFUSED}.items():
        if name.startswith(prefix):
            return why
    near = get_close_matches(name, [*WORKER_VARIABLES, *GATEWAY_VARIABLES, *NODE_KEYS], n=1)
    return f"unknown variable; did you mean {near[0]}?" if near else "unknown variable; unset it"
