"""The admin port: /metrics, /healthz, /readyz and one page for people. Plain HTTP, read only.

Theory. Whoever can reach the port may be hostile, or merely a scanner that opens connections and forgets them, and
must cost the node nothing. So a connection carries one request (HTTP/1.0, no keep-alive), lives for
`CONNECTION_SECONDS` at most, and there are never more than `MAX_CONNECTIONS`: when all are taken the oldest is cut,
because an honest probe is done in milliseconds and the newcomer is more likely to be one. Scrapes, the only costly
request, are bounded by `MAX_SCRAPES` on top.

It runs in threads of its own, so that it answers while the gateway's loop is wedged or a worker's dispatch thread
holds a device; what it shows comes through the callables of `AdminSource`, which read frozen snapshots.

State: `_connections` belongs to the accepting thread and the connection threads, under `_lock`.
"""

from __future__ import annotations

import errno
import html
import http.client
import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from reactant_node.errors import AddressInUse, ConfigError
from reactant_node.telemetry.metrics import Rendered, compressed

CONNECTION_SECONDS = 20.0
"""From accept to close: a scrape may wait `FETCH_SECONDS` for workers, and Prometheus gives up after 10 s."""

SOCKET_SECONDS = 5.0
"""For one read or for the whole of a write."""

MAX_CONNECTIONS = 32
"""At once, each with its thread: a few scrapers and probes need two or three; a container may allow 200 threads."""

MAX_SCRAPES = 4
"""/metrics at once; one more waits `SOCKET_SECONDS` and is then told 503."""

MAX_REQUEST_BYTES = 32 * 1024
"""Request line and headers together."""

_POLL_SECONDS = 0.25
"""How often the accepting thread looks for stop and for connections that have lived too long."""

_ANY_HOST = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - recognised here, chosen by the configuration

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker on the page."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model on the page; `reason` is empty where there is nothing to explain."""

    name: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What the page shows."""

    version: str
    role: str
    uptime_seconds: float
    workers: tuple[WorkerRow, ...]
    models: tuple[ModelRow, ...]


@dataclass(frozen=True, slots=True)
class AdminSource:
    """Where the answers come from; every callable may be called from any thread and must not wait for long.

    Attributes:
        not_ready: why the node cannot serve, or None where it can.
        metrics: the exposition for an Accept header.
        status: the page's content.
    """

    not_ready: Callable[[], str | None]
    metrics: Callable[[str], Rendered]
    status: Callable[[], Status]


class AdminServer:
    """The admin port as a unit: `start` binds and serves, `stop` closes. Not restarted: make another.

    Args:
        host: where to listen; a wildcard means both address families.
        port: 0 is any free one.
        source: the answers.
        setting: the configuration key of the address, for error messages.
    """

    def __init__(self, host: str, port: int, source: AdminSource, *, setting: str = "listen.metrics") -> None:
        self._host, self._port, self._source, self._setting = host, port, source, setting
        self._server: _Server | None = None

    def start(self) -> int:
        """Bind, and serve from a thread; the port really bound.

        Raises:
            AddressInUse: another socket listens there.
            ConfigError: the address cannot be this host's.
        """
        listener = _listen(self._host, self._port, self._setting)
        self._server = _Server(listener, self._source)
        threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="admin-http", daemon=True
        ).start()
        self._port = int(listener.getsockname()[1])
        return self._port

    def stop(self) -> None:
        """Close the port, and every connection. Safe to call twice."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut_all()
            self._server = None

    def __repr__(self) -> str:
        state = "stopped" if self._server is None else f"{self._server.open_connections} connections"
        return f"<AdminServer {self._host}:{self._port} {state}>"


def _listen(host: str, port: int, setting: str) -> socket.socket:
    try:
        return _bind_any(port) if host in _ANY_HOST else _bind_one(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{setting}: {host}:{port} is in use by another process; stop it or choose another port"
            ) from error
        raise ConfigError(f"{setting}: cannot listen on {host}:{port} ({error.strerror or error})") from error


def _bind_any(port: int) -> socket.socket:
    """One socket for both address families, or for IPv4 alone on a host without IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # the family is there, but turned off by sysctl
                raise
    return socket.create_server(("", port))


def _bind_one(host: str, port: int) -> socket.socket:
    host = host.strip("[]")
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server((str(address[0]), port), family=family)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Accepts, bounds and forgets connections."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, source: AdminSource) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.source = source
        self.scrapes = threading.BoundedSemaphore(MAX_SCRAPES)
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, float] = {}  # when accepted, oldest first

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                _cut(next(iter(self._connections)))
            if len(self._connections) >= 2 * MAX_CONNECTIONS:  # the cut ones have not ended yet
                raise ConnectionAbortedError("too many connections")
            self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        too_old = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            for connection, accepted in self._connections.items():
                if accepted < too_old:
                    _cut(connection)

    def cut_all(self) -> None:
        with self._lock:
            for connection in self._connections:
                _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """A client that went away, or was cut, is no event; what fails in an answer is logged there."""
        _log.debug("admin connection ended early", exc_info=True)


def _cut(connection: socket.socket) -> None:
    # Its thread sees the end and closes it; closing here would free the number while the thread uses it.
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _BoundedLines(io.BufferedIOBase):
    """A connection's read side that ends with an error instead of more than `MAX_REQUEST_BYTES`."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source, self._left = source, MAX_REQUEST_BYTES

    def readline(self, size: int | None = -1) -> bytes:  # noqa: ARG002 - the bound is ours
        line = self._source.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("request")
        return line

    def close(self) -> None:
        self._source.close()


class _Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0, so that the connection ends with it."""

    timeout = SOCKET_SECONDS
    default_request_version = "HTTP/1.0"  # else a request that cannot be parsed is answered without a status line
    server_version = "reactant-node"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("io.BufferedReader", _BoundedLines(self.rfile))

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except http.client.LineTooLong:  # already in the request line
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    @property
    def _server(self) -> _Server:
        return cast("_Server", self.server)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        routes = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz, "/": self._page}
        answer = routes.get(path)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            answer()
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - logged, and answered: a scrape must not fail without a word
            _log.exception("admin request failed", extra={"path": path})
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def __getattr__(self, name: str) -> Callable[[], None]:
        """http.server looks methods up by name: every other one exists and is not allowed."""
        if name.startswith("do_"):
            return self._method_not_allowed
        raise AttributeError(name)

    def _method_not_allowed(self) -> None:
        body = b"405 Method Not Allowed\n"
        self._reply(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", body, allow="GET, HEAD")

    def _metrics(self) -> None:
        if not self._server.scrapes.acquire(timeout=SOCKET_SECONDS):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many scrapes at once")
            return
        try:
            rendered = self._server.source.metrics(self.headers.get("Accept", ""))
        finally:
            self._server.scrapes.release()
        reply = compressed(rendered, self.headers.get("Accept-Encoding", ""))
        extra = {"content_encoding": reply.content_encoding} if reply.content_encoding else {}
        self._reply(HTTPStatus.OK, reply.content_type, reply.body, **extra)

    def _healthz(self) -> None:
        self._text(HTTPStatus.OK, "ok")

    def _readyz(self) -> None:
        reason = self._server.source.not_ready()
        if reason is None:
            self._text(HTTPStatus.OK, "ok")
        else:
            self._text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    def _page(self) -> None:
        source = self._server.source
        page = render_page(source.status(), source.not_ready())
        self._reply(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._reply(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _reply(self, status: HTTPStatus, content_type: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-").title(), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's signature
        """Requests are not logged: probes come every few seconds."""


def render_page(status: Status, not_ready: str | None) -> str:
    """The page for people. Everything that came from outside is escaped."""
    state = "ready" if not_ready is None else f"not ready: {not_ready}"
    workers = [(worker.name, worker.state) for worker in status.workers]
    models = [(model.name, model.version, model.state, model.reason) for model in status.models]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>reactant-node</title>'
        "<style>body{font-family:sans-serif;margin:2em}td,th{text-align:left;padding:.2em 1em .2em 0}</style>"
        f"<h1>reactant-node {html.escape(status.version)}</h1>"
        f"<p>{html.escape(state)}; role {html.escape(status.role)}; up {_duration(status.uptime_seconds)}</p>"
        f"{_table('Workers', ('name', 'state'), workers)}"
        f"{_table('Models', ('name', 'version', 'state', 'reason'), models)}"
        '<p><a href="/metrics">metrics</a> <a href="/readyz">readyz</a> <a href="/healthz">healthz</a></p></html>\n'
    )


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>none</p>"
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><tr>{''.join(f'<th>{cell}</th>' for cell in header)}</tr>{lines}</table>"


def _duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    return f"{days} d {hours:02}:{minutes:02}:{rest:02}"
