"""Whether the node on this host is ready: the `health` command, for container health checks.

It asks the port that really serves. What is said to this command itself comes first (`--metrics-port`,
REACTANT_GATEWAY_METRICS_PORT), then the materialized node file, which holds what the running node was told by flag,
variable or file, so that a changed port never leaves the check behind (reference HLT-2); without that file, the
variable that the node would read. Role `workers` has no public port: the node is ready if any of its workers is.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reactant_node.config.checks import PORT, Check, Unacceptable, address, shown, split_address
from reactant_node.config.documents import read_document
from reactant_node.config.runtime_dir import NODE_FILE_NAME, RUNTIME_DIR
from reactant_node.config.schema import ListenConfig, Role
from reactant_node.errors import ConfigError

TIMEOUT_SECONDS = 5.0
"""For all workers together, which are asked at once; container engines give a check 20 to 30 s."""

MAX_SHOWN_BYTES = 1000
"""Of an answer, which may come from anything that listens there."""

Target = tuple[str, int]
"""Host and port."""


def check_health(port: str | None, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Ask /readyz.

    Args:
        port: by flag; None to look it up.
        environ: of this process.

    Returns:
        Ready or not, and a line that says what answered.

    Raises:
        ConfigError: the port is no port, or the materialized node file is none.
    """
    targets = list(_targets(port, environ))
    with ThreadPoolExecutor(len(targets)) as pool:
        answers = list(pool.map(_ask, targets))
    ready = [text for well, text in answers if well]
    return bool(ready), ready[0] if ready else "; ".join(text for _, text in answers)


def _targets(port: str | None, environ: Mapping[str, str]) -> Iterator[Target]:
    path = Path(environ.get("REACTANT_RUNTIME_DIR") or RUNTIME_DIR) / NODE_FILE_NAME
    try:
        public, workers = _materialized(read_document(path)) if os.access(path, os.R_OK) else (None, {})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not as a node writes it ({error!r}); name the port by --metrics-port") from error
    if workers and port is None:
        one = environ.get("REACTANT_WORKER_NAME", "")
        targets = [workers[one]] if one in workers else list(workers.values())
    else:
        host, number = public or _configured(environ)
        targets = [(host, _stated(port, environ, number))]
    for host, number in targets:
        if not number:
            raise ConfigError("health: the node listens on any free port (0); name the one in its log: --metrics-port")
        yield _reachable(host), number


def _materialized(document: Mapping[str, Any]) -> tuple[Target, dict[str, Target]]:
    """Where the running node has its public admin port, and in role `workers` each worker by name."""
    public = split_address(document["gateway"]["listen"]["metrics"])
    if document["role"] != Role.WORKERS:
        return public, {}
    return public, {it["name"]: (str(it["host"]), int(it["metrics_port"])) for it in document["workers"]}


def _configured(environ: Mapping[str, str]) -> Target:
    name, listen = "REACTANT_GATEWAY_LISTEN_METRICS", ListenConfig()
    if not environ.get(name):
        return listen.metrics_host, listen.metrics_port
    host, number = split_address(str(_checked(address(any_host=True), name, environ[name])))
    return host or listen.metrics_host, number


def _stated(port: str | None, environ: Mapping[str, str], otherwise: int) -> int:
    name = "REACTANT_GATEWAY_METRICS_PORT"
    if port is not None:
        return int(str(_checked(PORT, "--metrics-port", port)))
    return int(str(_checked(PORT, name, environ[name]))) if environ.get(name) else otherwise


def _checked(check: Check, source: str, text: str) -> object:
    try:
        return check.of_text(text)
    except Unacceptable as accepted:
        raise ConfigError(f"{source}: got {shown(text)}; {accepted}") from accepted


def _reachable(host: str) -> str:
    """Where a listener of this host answers from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - recognised, not bound


def _ask(target: Target) -> tuple[bool, str]:
    host, port = target
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        body = reply.read(MAX_SHOWN_BYTES).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer from {host}:{port}: {error or type(error).__name__}"
    finally:
        connection.close()
    return reply.status == http.client.OK, f"{host}:{port}: {body or reply.status}"
