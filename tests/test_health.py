"""`health` asks the port that the node on this host really has, and says what answered."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from reactant_node.cli import main
from reactant_node.config.runtime_dir import write_node_file
from reactant_node.config.schema import EndpointsConfig, GatewayConfig, ListenConfig, NodeConfig, Role, WorkerConfig
from reactant_node.errors import ConfigError
from reactant_node.health import check_health
from reactant_node.telemetry.admin import AdminServer, AdminSource, Status
from reactant_node.telemetry.metrics import Rendered

Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start an admin port, ready unless a reason is given; it answers with its port."""
    with ExitStack() as running:

        def start(reason: str | None = None, host: str = "127.0.0.1") -> int:
            source = AdminSource(lambda: reason, lambda _: Rendered("", "", b""), lambda: Status("", "", 0, (), ()))
            server = AdminServer(host, 0, source)
            port = server.start()
            running.callback(server.stop)
            return port

        yield start


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that is bound, so that nobody else gets it, and where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def worker(name: str, port: int) -> WorkerConfig:
    """A worker with this admin port."""
    return WorkerConfig(name, "", 1, ("/m",), endpoints=EndpointsConfig(metrics_port=port))


def node_with(port: int, host: str = "127.0.0.1") -> NodeConfig:
    """A node that was told to have its public admin port here."""
    listen = ListenConfig(metrics_host=host, metrics_port=port)
    return NodeConfig(Role.ALL, (worker("worker0", 1),), GatewayConfig(listen=listen), listen)


def environ_of(tmp_path: Path, node: NodeConfig | None = None, /, **more: str) -> dict[str, str]:
    """The environment of a host with this run-time folder, and the node's file in it."""
    if node is not None:
        write_node_file(tmp_path, node)
    return {"REACTANT_RUNTIME_DIR": str(tmp_path), **more}


def test_the_running_nodes_own_port_is_asked(tmp_path: Path, serve: Serve) -> None:
    """From the materialized file, whoever set it: flag, variable or file; ready or not is the answer."""
    port = serve()
    assert check_health(None, environ_of(tmp_path, node_with(port, "0.0.0.0"))) == (True, f"127.0.0.1:{port}: ok")
    port = serve("draining")
    assert check_health(None, environ_of(tmp_path, node_with(port))) == (
        False,
        f"127.0.0.1:{port}: not ready: draining",
    )


@pytest.mark.parametrize("name", ["REACTANT_GATEWAY_LISTEN_METRICS", "REACTANT_GATEWAY_METRICS_PORT"])
def test_without_that_file_the_variables_say_where(tmp_path: Path, serve: Serve, name: str) -> None:
    """The node would read the one; the other is the check's alone."""
    port = serve()
    value = str(port) if name.endswith("_PORT") else f"0.0.0.0:{port}"
    assert check_health(None, environ_of(tmp_path, None, **{name: value}))[0]


def test_the_nodes_file_stands_over_the_variable_and_what_is_said_to_the_check_over_both(
    tmp_path: Path, serve: Serve, silent_port: int
) -> None:
    """The variable may be another than the node was started with; a port for this command is an order."""
    port = serve()
    stale = {"REACTANT_GATEWAY_LISTEN_METRICS": f":{silent_port}"}
    assert check_health(None, environ_of(tmp_path, node_with(port), **stale))[0]
    ordered = environ_of(tmp_path, node_with(silent_port), REACTANT_GATEWAY_METRICS_PORT=str(port))
    assert check_health(None, ordered)[0]
    assert not check_health(str(silent_port), ordered)[0]


def test_with_no_word_from_anybody_it_is_8002(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default port, asked on loopback."""
    asked: list[tuple[str, int]] = []

    def ask(target: tuple[str, int]) -> tuple[bool, str]:
        asked.append(target)
        return True, ""

    monkeypatch.setattr("reactant_node.health._ask", ask)
    assert check_health(None, environ_of(tmp_path))[0]
    unset = {"REACTANT_GATEWAY_LISTEN_METRICS": "", "REACTANT_GATEWAY_METRICS_PORT": ""}
    assert check_health(None, environ_of(tmp_path, None, **unset))[0]
    assert asked == [("127.0.0.1", 8002)] * 2


def test_a_node_of_workers_is_ready_if_any_worker_is(tmp_path: Path, serve: Serve, silent_port: int) -> None:
    """It has no public port; REACTANT_WORKER_NAME asks one of them alone."""
    ports = [silent_port, serve("loading models"), serve()]
    workers = tuple(worker(f"w{index}", port) for index, port in enumerate(ports))
    node = NodeConfig(Role.WORKERS, workers, None, ListenConfig())
    environ = environ_of(tmp_path, node, REACTANT_GATEWAY_METRICS_PORT=str(silent_port))
    assert check_health(None, environ) == (True, f"127.0.0.1:{ports[2]}: ok")
    ready, answer = check_health(None, {**environ, "REACTANT_WORKER_NAME": "w1"})
    assert (ready, answer) == (False, f"127.0.0.1:{ports[1]}: not ready: loading models")
    assert check_health(None, {**environ, "REACTANT_WORKER_NAME": "inherited"})[0]
    write_node_file(tmp_path, NodeConfig(Role.WORKERS, workers[:2], None, ListenConfig()))
    ready, answer = check_health(None, environ)
    assert not ready
    assert f"no answer from 127.0.0.1:{silent_port}" in answer
    assert "loading models" in answer


@pytest.mark.parametrize("answer", [b"", b"\x00\xff\r\n", b"HTTP/1.0 nonsense\r\n\r\n"])
def test_what_does_not_speak_http_is_not_ready(answer: bytes) -> None:
    """Something else on the port: no answer, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer_once() -> None:
            with server.accept()[0] as peer:
                peer.recv(1000)
                peer.sendall(answer)

        done = pool.submit(answer_once)
        ready, text = check_health(str(server.getsockname()[1]), {"REACTANT_RUNTIME_DIR": "/nonexistent"})
        done.result(10)
    assert not ready
    assert text.startswith("no answer from 127.0.0.1:")


@pytest.mark.parametrize(
    ("port", "variables", "said"),
    [
        ("x", {}, "--metrics-port: got 'x'; use a whole number from 0 to 65535"),
        ("70000", {}, "--metrics-port: got '70000'"),
        ("0", {}, "any free port"),
        (None, {"REACTANT_GATEWAY_METRICS_PORT": "x"}, "REACTANT_GATEWAY_METRICS_PORT: got 'x'"),
        (None, {"REACTANT_GATEWAY_LISTEN_METRICS": "x"}, "REACTANT_GATEWAY_LISTEN_METRICS: got 'x'; use host:port"),
    ],
)
def test_a_port_that_is_none_is_named(tmp_path: Path, port: str | None, variables: dict[str, str], said: str) -> None:
    """With where it was said, and what would do."""
    with pytest.raises(ConfigError) as raised:
        check_health(port, environ_of(tmp_path, None, **variables))
    assert said in str(raised.value)


def test_a_node_on_any_free_port_cannot_be_found_by_its_file(tmp_path: Path) -> None:
    """The file has what was asked for, 0; the way out is the flag."""
    with pytest.raises(ConfigError, match="--metrics-port"):
        check_health(None, environ_of(tmp_path, node_with(0)))


@pytest.mark.parametrize(
    "text", ["role: all", "role: workers\ngateway: {listen: {metrics: ':1'}}", "gateway: 5", "- a"]
)
def test_a_file_that_no_node_wrote_is_named(tmp_path: Path, text: str) -> None:
    """Edited by hand, or another program's."""
    (tmp_path / "node.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"node\.yaml: "):
        check_health(None, environ_of(tmp_path))


def test_the_exit_code_is_for_container_engines(
    tmp_path: Path, serve: Serve, silent_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 ready, 1 not, with the answer on standard output."""
    monkeypatch.setitem(os.environ, "REACTANT_RUNTIME_DIR", str(tmp_path))
    assert main(["health", "--metrics-port", str(serve())]) == 0
    assert main(["health", "--metrics-port", str(silent_port)]) == 1
    assert "no answer from" in capsys.readouterr().out
