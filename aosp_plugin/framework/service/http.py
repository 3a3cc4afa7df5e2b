"""A read-only HTTP server for probes, metrics and people: the standard library's, in threads of its own.

A route is a function that returns an ``Answer``, and is called in the thread of its connection. Routes that need the
event loop call it through ``in_loop``; the server still answers when the loop is stuck.

``connections`` limits what a connection can use.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import ipaddress
import logging
import re
import socket
import threading
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aosp_plugin.framework.errors import ServiceError
from aosp_plugin.framework.service.connections import CLIENT_TIMEOUT, BoundedServer, read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping

    Route = Callable[[], "Answer"]

LOG = logging.getLogger(__name__)

T = TypeVar("T")

LOOP_TIMEOUT = 2.0
"""Seconds for the event loop to answer."""

TEXT = "text/plain; charset=utf-8"

_SECURITY_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_ACCEPTS_GZIP = re.compile(r"(^|[\s,])gzip\s*(;\s*q=(0\.\d*[1-9]\d*|1(\.0*)?)\s*)?(,|$)")


class Answer(NamedTuple):
    """The answer to a request."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    tag: str = ""
    """Entity tag: identifies this body among all bodies of its path. Empty: the answer has none."""
    gzipped: bool = False
    """Whether the body is compressed with gzip. It is decompressed for clients that do not accept gzip."""


def text(status: HTTPStatus, line: str) -> Answer:
    """Return an answer with one line of text."""
    return Answer(TEXT, f"{line}\n".encode(), status)


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


def probe(problem: Callable[[], str], details: Callable[[bool], str] = lambda _: "") -> Route:
    """Return a route that answers 200 if ``problem`` returns an empty text, else 503 with the text.

    The result of ``details``, which is called with whether there is no problem, is appended to both answers.
    """

    def answer() -> Answer:
        reason = problem()
        more = details(not reason)
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        return text(status, f"{reason or 'ok'}{'; ' if reason else ': '}{more}" if more else reason or "ok")

    return answer


def listen(address: tuple[str, int], beside: Collection[socket.socket] = ()) -> socket.socket:
    """Return a socket that listens on ``address``; its clients wait until a server accepts them.

    ``beside`` are sockets of this process whose addresses do not matter: one on all addresses of the host may have the
    same port. Raises ServiceError if the address is not available.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with _sharing_ports(listener, *beside) if beside else contextlib.nullcontext():
            listener.bind(address)
            listener.listen(BoundedServer.request_queue_size)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {address[0]}:{address[1]}: {error}; set another listen address"
        raise ServiceError(message) from error
    return listener


@contextlib.contextmanager
def _sharing_ports(*sockets: socket.socket) -> Iterator[None]:
    """Let the sockets share a port inside the context, and no longer: a port must not be taken twice by accident."""
    try:
        for it in sockets:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield
    finally:
        for it in sockets:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


@contextlib.contextmanager
def serving(
    address: tuple[str, int] | socket.socket, routes: Mapping[str, Route], allowed_hosts: Collection[str] = ()
) -> Iterator[int]:
    """Serve ``routes``, by path, on ``address`` inside the context; yield the port.

    ``address`` may be a socket of ``listen``, which is closed at the end. ``allowed_hosts`` are host names, other than
    localhost and that of an address, under which clients reach it; they have no port. Raises ServiceError if the
    address is not available.
    """
    if isinstance(address, socket.socket):
        listener = address
    else:
        listener, allowed_hosts = listen(address), {address[0], *allowed_hosts}
    server = BoundedServer(listener, _handler(routes, allowed_hosts))
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.stop()
        thread.join()
        server.server_close()


def _handler(routes: Mapping[str, Route], host_names: Iterable[str]) -> type[BaseHTTPRequestHandler]:
    names = frozenset(name.lower() for name in host_names) | {"localhost"}

    class Handler(_Handler):
        def answer(self) -> Answer:
            host = self.headers["Host"]
            if host is not None and not is_own_host(host, names):
                hint = "use an IP address, or add the name to allowed_hosts"
                return text(HTTPStatus.MISDIRECTED_REQUEST, f"unknown host name {host!r}: {hint}")
            route = routes.get(self.path.partition("?")[0])
            return route() if route else text(HTTPStatus.NOT_FOUND, "not found")

    return Handler


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and sends the answer, with headers that restrict what a browser does with it."""

    timeout = CLIENT_TIMEOUT

    def setup(self) -> None:
        """Read the whole head of the request with one deadline; the base class parses it. Raises OSError."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(read_head(self.connection, time.monotonic() + CLIENT_TIMEOUT))
        self.connection.settimeout(CLIENT_TIMEOUT)

    def answer(self) -> Answer:
        """Return the answer. Raises TimeoutError if the event loop is stuck."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Send the answer."""
        try:
            answer = self.answer()
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
            answer = answer._replace(status=HTTPStatus.NOT_MODIFIED, body=b"", gzipped=False)
        send_gzip = answer.gzipped and _ACCEPTS_GZIP.search(request.get("Accept-Encoding", "")) is not None
        body = gzip.decompress(answer.body) if answer.gzipped and not send_gzip else answer.body
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(body)),
            "Content-Encoding": "gzip" if send_gzip else "",
            "Vary": "Accept-Encoding" if answer.gzipped else "",
            "ETag": f'W/"{answer.tag}"' if answer.tag else "",
            "Allow": "GET, HEAD" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else "",
        }
        self.send_response(answer.status)
        for name, value in (headers | _SECURITY_HEADERS).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the Server header, without the version of the interpreter."""
        return "aosp-plugin"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Do not log requests: probes come every few seconds."""


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
