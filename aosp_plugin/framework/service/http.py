"""A read-only HTTP server for probes, metrics and people: the standard library's, with limits for untrusted clients.

A route is a function that returns an ``Answer``, and is called in the thread of its connection. Routes that need the
event loop call it through ``in_loop``; the server still answers when the loop is stuck.

A connection serves one request and has limits in size and time. When all connections are in use, a new one closes the
oldest one, so that slow or many clients cannot lock out a probe.

Import it after the start: the standard library's request parser loads the e-mail parser, which takes a megabyte.
"""

import asyncio
import contextlib
import errno
import io
import ipaddress
import logging
import selectors
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias, TypeVar

Route: TypeAlias = "Callable[[], Answer]"

T = TypeVar("T")

LOG = logging.getLogger(__name__)

LOOP_TIMEOUT = 2.0
"""Seconds for the event loop to answer."""
CLIENT_TIMEOUT = 10.0
"""Seconds for a client to send its request, and the same again to receive the answer."""
MAX_CONNECTIONS = 16
"""Concurrent connections. A browser opens six per server, a kubelet one per probe."""
ACCEPT_RETRY = 0.5
"""Seconds until connections are accepted again after descriptors, memory or threads ran out."""
MAX_REQUEST_SIZE = 16 * 1024
"""Bytes."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept(2) that leave the connection in the queue: the listening socket stays readable."""
_SECURITY_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """The answer to a request."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    tag: str = ""
    """Entity tag: identifies this body among all bodies of its path. Empty: the answer has none."""


def text(status: HTTPStatus, line: str) -> Answer:
    """Return an answer with one line of text."""
    return Answer("text/plain; charset=utf-8", f"{line}\n".encode(), status)


def in_loop(function: Callable[[], Coroutine[Any, Any, T]]) -> Callable[[], T]:
    """Return a function for other threads that runs ``function`` in the current event loop.

    It raises TimeoutError if the loop takes longer than ``LOOP_TIMEOUT``. The server answers 503 then, and the call
    is cancelled.
    """
    loop = asyncio.get_running_loop()

    def call() -> T:
        future = asyncio.run_coroutine_threadsafe(function(), loop)
        try:
            return future.result(LOOP_TIMEOUT)
        finally:
            future.cancel()

    return call


@contextlib.contextmanager
def serving(listener: socket.socket, routes: Mapping[str, Route], allowed_hosts: Collection[str] = ()) -> Iterator[int]:
    """Serve ``routes``, by path, on a socket of ``address.listen`` inside the context; yield the port.

    The socket is closed at the end. ``allowed_hosts`` are host names, other than localhost, under which clients reach
    it; they have no port.
    """
    server = _Server(listener, routes, frozenset(name.lower() for name in allowed_hosts) | {"localhost"})
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.stop()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Handles each connection in a daemon thread of its own, which delays neither the end of the process nor ours."""

    block_on_close = False

    def __init__(self, listener: socket.socket, routes: Mapping[str, Route], names: Collection[str]) -> None:
        """``names`` are the own host names in lower case."""
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.socket.settimeout(0.0)  # a client may disconnect before it is accepted
        self.routes, self.names = routes, names
        self._open: dict[socket.socket, bool] = {}
        """Open connections, the oldest first; False if shut down to make room."""
        self._lock = threading.Lock()
        self._exhausted = False
        """Whether the last attempt to accept a connection found no descriptor, memory or thread."""
        self._stop_receiver, self._stop_sender = socket.socketpair()

    def run(self) -> None:
        """Serve until ``stop`` is called, without the periodic wake-ups of ``serve_forever``."""
        with self._stop_receiver, selectors.PollSelector() as selector:  # epoll would need a descriptor
            for readable in (self.socket, self._stop_receiver):
                selector.register(readable, selectors.EVENT_READ)
            while all(key.fileobj is not self._stop_receiver for key, _ in selector.select()):
                self._handle_request_noblock()  # type: ignore[attr-defined] # as in serve_forever

    def stop(self) -> None:
        """Make ``run`` return. Called in another thread."""
        self._stop_sender.close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises OSError, after a pause if the connection has to wait in the queue."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._pause(error)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread; close it after a pause if there can be no further thread."""
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:
            self.shutdown_request(request)
            self._pause(error)
        else:
            self._exhausted = False

    def _pause(self, error: Exception) -> None:
        """Log once that something has run out, and wait."""
        if not self._exhausted:
            LOG.warning("HTTP connections cannot be accepted, retrying", extra={"error": str(error)})
        self._exhausted = True
        time.sleep(ACCEPT_RETRY)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class's signature
        """Accept a connection and close another one if necessary. Refuse it if closed ones are slow to end."""
        with self._lock:
            if len(self._open) >= 2 * MAX_CONNECTIONS:
                return False
            active = [connection for connection, is_active in self._open.items() if is_active]
            if len(active) >= MAX_CONNECTIONS:
                self._open[active[0]] = False
                with contextlib.suppress(OSError):  # already disconnected
                    active[0].shutdown(socket.SHUT_RDWR)
            self._open[request] = True
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log a bug. A client may disconnect at any time."""
        error = sys.exception()
        if not isinstance(error, OSError):
            LOG.error("HTTP request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and sends the answer, with headers that restrict what a browser does with it."""

    timeout = CLIENT_TIMEOUT
    server: _Server

    def setup(self) -> None:
        """Read the whole head of the request with one deadline; the base class parses it. Raises OSError."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(_read_head(self.connection, time.monotonic() + CLIENT_TIMEOUT))
        self.connection.settimeout(CLIENT_TIMEOUT)

    def do_GET(self) -> None:
        """Send the answer."""
        host = self.headers["Host"]
        route = self.server.routes.get(self.path.partition("?")[0])
        try:
            if host is not None and not is_own_host(host, self.server.names):
                hint = "use an IP address, or add the name to allowed_hosts"
                answer = text(HTTPStatus.MISDIRECTED_REQUEST, f"unknown host name {host!r}: {hint}")
            else:
                answer = route() if route else text(HTTPStatus.NOT_FOUND, "not found")
        except TimeoutError:
            message = f"the event loop has not answered for {LOOP_TIMEOUT:.0f} s"
            answer = text(HTTPStatus.SERVICE_UNAVAILABLE, message)
        except Exception:
            LOG.error("HTTP request failed", extra={"path": self.path}, exc_info=True)  # noqa: G201 - a documented level
            answer = text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the plugin's log has the cause")
        self._send(answer)

    def do_HEAD(self) -> None:
        """Send the answer without its body."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer an invalid request in one line. The base class calls this for unknown methods as well."""
        self.request_version = self.protocol_version  # otherwise an unreadable request is answered as HTTP/0.9
        unknown_method = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if unknown_method else HTTPStatus(code)
        self._send(text(status, "only GET and HEAD are supported" if unknown_method else status.phrase))

    def _send(self, answer: Answer) -> None:
        request = getattr(self, "headers", None) or {}  # not set if the request line is invalid
        if answer.tag and f'"{answer.tag}"' in request.get("If-None-Match", ""):
            answer = answer._replace(status=HTTPStatus.NOT_MODIFIED, body=b"")
        headers = {
            "Date": self.date_time_string(),
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "ETag": f'W/"{answer.tag}"' if answer.tag else "",
            "Allow": "GET, HEAD" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else "",
        }
        self.send_response_only(answer.status)  # without the version of the interpreter
        for name, value in (headers | _SECURITY_HEADERS).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Do not log requests: probes come every few seconds."""


def _read_head(connection: socket.socket, deadline: float) -> bytes:
    """Return what a client sends up to an empty line, possibly with more; empty if it is too large or ends early.

    Raises OSError, also if the empty line does not arrive by ``deadline`` (``time.monotonic``).
    """
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(4096)
        head += part
        if not part or len(head) > MAX_REQUEST_SIZE:
            return b""
    return head


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Return whether the header ``Host`` is an IP address or one of ``names``, which are in lower case.

    Any other name may be one that a malicious web page made resolve to this address, to read data that the browser
    would otherwise keep from it (DNS rebinding). The port is ignored: a forwarded one differs from that of the server.
    """
    try:
        name = (urllib.parse.urlsplit(f"//{host}").hostname or "").removesuffix(".")
        if name in names:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
