"""The admin port answers probes and scrapes, and hostile connections cost nothing."""

from __future__ import annotations

import errno
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from reactant_node.errors import AddressInUse, ConfigError
from reactant_node.telemetry import admin
from reactant_node.telemetry.admin import AdminServer, AdminSource, ModelRow, Status, WorkerRow, render_page
from reactant_node.telemetry.metrics import Rendered, family, render

STATUS = Status(
    version="1.2.3",
    role="all",
    uptime_seconds=93_784.5,
    workers=(WorkerRow("worker0", "ready"),),
    models=(ModelRow("<script>", "1", "UNAVAILABLE", "a & b"),),
)


class Source:
    """What the node says of itself, changed by a test."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.broken = False

    def metrics(self, accept: str) -> Rendered:
        """One gauge."""
        if self.broken:
            raise RuntimeError("no metrics today")
        return render([family("worker_models_loaded", [((), 3)])], accept)

    def as_source(self) -> AdminSource:
        """The callables."""
        return AdminSource(lambda: self.reason, self.metrics, lambda: STATUS)


@pytest.fixture
def source() -> Source:
    """A healthy node."""
    return Source()


@pytest.fixture
def port(source: Source) -> Iterator[int]:
    """The port of a running admin server."""
    server = AdminServer("127.0.0.1", 0, source.as_source())
    yield server.start()
    server.stop()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """One request: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def closed_by_server(connection: socket.socket) -> bool:
    """Whether the server ends the connection; waits for it at most the socket's timeout."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_healthz_is_ok_even_while_not_ready(port: int, source: Source) -> None:
    """Liveness says that the process answers, whatever else."""
    source.reason = "no worker is ready"
    status, _, body = ask(port, "/healthz")
    assert (status, body) == (200, b"ok\n")


def test_readyz_follows_readiness_and_gives_the_reason(port: int, source: Source) -> None:
    """200 ok, or 503 with why."""
    assert ask(port, "/readyz")[::2] == (200, b"ok\n")
    source.reason = "no worker is ready"
    assert ask(port, "/readyz")[::2] == (503, b"not ready: no worker is ready\n")


def test_metrics_are_negotiated_and_compressed(port: int) -> None:
    """The Accept and Accept-Encoding headers are honoured."""
    status, headers, body = ask(port, "/metrics?x=1")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"\nworker_models_loaded 3.0\n" in body
    _, headers, body = ask(port, "/metrics", Accept="application/openmetrics-text", Accept_Encoding="gzip")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert headers["Content-Encoding"] == "gzip"
    assert body[:2] == b"\x1f\x8b"


def test_the_page_shows_states_and_escapes_them(port: int) -> None:
    """Names and reasons come from outside and are never markup."""
    status, headers, body = ask(port, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    page = body.decode()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page
    assert "up 1 d 02:03:04" in page


def test_a_page_without_workers_says_so() -> None:
    """An empty table is no empty page."""
    page = render_page(Status("1", "all", 0, (), ()), "starting <now>")
    assert page.count("<p>none</p>") == 2
    assert "not ready: starting &lt;now&gt;" in page


def test_head_has_the_headers_and_no_body(port: int) -> None:
    """HEAD answers as GET does, without the body."""
    status, headers, body = ask(port, "/readyz", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "3", b"")


def test_other_paths_are_not_found(port: int) -> None:
    """404, and the path is not echoed."""
    status, _, body = ask(port, "/v2/<b>")
    assert status == 404
    assert b"<b>" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"])
def test_other_methods_are_not_allowed(port: int, method: str) -> None:
    """405, naming what is."""
    status, headers, _ = ask(port, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_failing_answer_is_a_500_and_the_server_goes_on(port: int, source: Source) -> None:
    """One broken scrape takes nothing else down."""
    source.broken = True
    assert ask(port, "/metrics")[0] == 500
    assert ask(port, "/healthz")[0] == 200


def test_a_connection_carries_one_request(port: int) -> None:
    """No keep-alive: idle connections do not pile up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert closed_by_server(connection)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", b" 431 "),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b" 431 "),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b" 431 "),
        (b"GET / HTTP/1.1 extra\r\n\r\n", b" 400 "),
        (b"GET / HTTP/9.9\r\n\r\n", b" 505 "),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
    ],
)
def test_oversized_and_malformed_requests_are_refused(port: int, request_bytes: bytes, status: bytes) -> None:
    """Request line and headers are bounded together, and nonsense is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request_bytes)
        assert status in connection.recv(4096).split(b"\r\n")[0] + b" "
    assert ask(port, "/healthz")[0] == 200


def test_silent_connections_do_not_keep_probes_out(port: int) -> None:
    """When all places are taken the oldest connection is cut for the newcomer."""
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(admin.MAX_CONNECTIONS + 8)
        ]
        assert ask(port, "/readyz")[0] == 200
        assert closed_by_server(idle[0])


def test_a_connection_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    """The limit is on the whole connection: a byte now and then does not renew it."""
    monkeypatch.setattr(admin, "CONNECTION_SECONDS", 0.2)
    server = AdminServer("127.0.0.1", 0, source.as_source())
    port = server.start()
    end = time.monotonic() + 10
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as connection:
        while not closed_by_server(connection):
            assert time.monotonic() < end, "still open"
            with suppress(ConnectionError):  # the cut is seen here or there
                connection.sendall(b"G")
    server.stop()


def test_a_port_that_is_taken_is_an_error_that_names_it(port: int, source: Source) -> None:
    """The second one fails, and says which setting to change; the first is not disturbed."""
    second = AdminServer("127.0.0.1", port, source.as_source())
    with pytest.raises(AddressInUse, match=f"listen.metrics: 127.0.0.1:{port} is in use"):
        second.start()
    wildcard = AdminServer("0.0.0.0", port, source.as_source())
    with pytest.raises(AddressInUse):
        wildcard.start()
    assert ask(port, "/healthz")[0] == 200


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_a_configuration_error(source: Source, host: str) -> None:
    """An operator's mistake is told as one."""
    with pytest.raises(ConfigError, match=f"listen.metrics: cannot listen on {host}"):
        AdminServer(host, 0, source.as_source()).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_wildcard_listens_on_both_families(source: Source, host: str) -> None:
    """IPv4 always; IPv6 where the host has it."""
    server = AdminServer(host, 0, source.as_source())
    port = server.start()
    try:
        families = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
        for address in families:
            with socket.create_connection((address, port), timeout=10) as connection:
                connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.0 200")
    finally:
        server.stop()


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_host_without_ipv6_is_served_on_ipv4(monkeypatch: pytest.MonkeyPatch, source: Source, number: int) -> None:
    """Neither a kernel without the family nor one with it turned off is a failure."""
    real = socket.create_server

    def no_ipv6(*args: object, family: int = socket.AF_INET, **options: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "no IPv6 here")
        return real(*args, family=family, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", no_ipv6)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: number == errno.EADDRNOTAVAIL)
    server = AdminServer("0.0.0.0", 0, source.as_source())
    assert ask(server.start(), "/healthz")[0] == 200
    server.stop()


def test_stop_frees_the_port_at_once(source: Source) -> None:
    """Another server takes the same port right after, and a stopped one may be stopped again."""
    first = AdminServer("127.0.0.1", 0, source.as_source())
    port = first.start()
    assert repr(first) == f"<AdminServer 127.0.0.1:{port} 0 connections>"
    assert ask(port, "/healthz")[0] == 200
    first.stop()
    first.stop()
    assert repr(first) == f"<AdminServer 127.0.0.1:{port} stopped>"
    second = AdminServer("127.0.0.1", port, source.as_source())
    assert second.start() == port
    second.stop()
