"""Whether the node on this host is ready: the `health` command, for container health checks.

It asks the port that really serves: the one given, else the environment's, else the one in the materialized node
file, so that a changed port never leaves the check behind (reference HLT-2). Role `workers` has no public port: the
node is then ready if any of its workers is.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from reactant_node.config.documents import read_document
from reactant_node.config.runtime_dir import NODE_FILE_NAME, RUNTIME_DIR
from reactant_node.config.schema import ListenConfig
from reactant_node.errors import ConfigError

TIMEOUT_SECONDS = 5.0


def check_health(port: str | None, environ: Mapping[str, str]) -> tuple[bool, str]:
    """Ask /readyz.

    Args:
        port: by flag; None to look it up.
        environ: of this process.

    Returns:
        Ready or not, and a line that says what answered.
    """
    answers = [_ask(host, number) for host, number in _targets(port, environ)]
    ready = [text for well, text in answers if well]
    return bool(ready), ready[0] if ready else "; ".join(text for _, text in answers)


def _targets(port: str | None, environ: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    listen = environ.get("REACTANT_GATEWAY_LISTEN_METRICS", "").rpartition(":")[2]
    stated = port or environ.get("REACTANT_GATEWAY_METRICS_PORT") or listen
    if stated:
        yield "127.0.0.1", _number(stated)
        return
    try:
        document = read_document(Path(environ.get("REACTANT_RUNTIME_DIR") or RUNTIME_DIR) / NODE_FILE_NAME)
    except ConfigError:
        yield "127.0.0.1", ListenConfig().metrics_port
        return
    yield from _materialized_targets(document)


def _materialized_targets(document: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    if document.get("role") == "workers":
        for worker in cast("list[Mapping[str, object]]", document["workers"]):
            yield _reachable(str(worker["host"])), int(str(worker["metrics_port"]))
        return
    gateway = cast("Mapping[str, Mapping[str, str]]", document["gateway"])
    host, _, number = gateway["listen"]["metrics"].rpartition(":")
    yield _reachable(host.strip("[]")), int(number)


def _reachable(host: str) -> str:
    """Where a listener of this host answers from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - recognised, not bound


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"health: got the port {text!r}; use a number")
    return int(text)


def _ask(host: str, port: int) -> tuple[bool, str]:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        body = reply.read(1000).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer from {host}:{port}: {error}"
    finally:
        connection.close()
    return reply.status == http.client.OK, f"{host}:{port}: {body}"
