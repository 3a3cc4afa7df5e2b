"""HTTP for probes and for people: the standard library's server, in threads of its own. Nothing can be changed by it.

What is served is given as functions that return an ``Answer``; they are called in the thread of the connection. What
belongs to the event loop is asked there (``in_loop``), so that a loop that is stuck is found as well.

What a connection may take of the process is ``connections``' matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import ipaddress
import re
import threading
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aosp_plugin.framework.errors import ServiceError
from aosp_plugin.framework.service.connections import TAKE_WITHIN, BoundedServer, read_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Route = Callable[[], "Answer"]

T = TypeVar("T")

ANSWER_WITHIN = 2.0
"""Seconds for the event loop to answer."""

TEXT = "text/plain; charset=utf-8"

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_TAKES_GZIP = re.compile(r"(^|[\s,])gzip\s*(;\s*q=(0\.\d*[1-9]\d*|1(\.0*)?)\s*)?(,|$)")


class Answer(NamedTuple):
    """What a path is answered with."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    tag: str = ""
    """Tells this body from any other one at its path, so that a client that has it is spared it; empty: untold."""
    packed: bool = False
    """Whether the body is in gzip; it is unpacked for a client that doesn't take that."""


def text(status: HTTPStatus, line: str) -> Answer:
    """Return a line of text."""
    return Answer(TEXT, f"{line}\n".encode(), status)


def in_loop(function: Callable[[], Awaitable[T]]) -> Callable[[], T]:
    """Return a function for other threads that has ``function`` done in the event loop that runs now.

    It raises TimeoutError where the loop has not done it within ``ANSWER_WITHIN``, which is answered with 503.
    """
    loop = asyncio.get_running_loop()

    async def call() -> T:
        return await function()

    def ask() -> T:
        return asyncio.run_coroutine_threadsafe(call(), loop).result(ANSWER_WITHIN)

    return ask


def probe(problem: Callable[[], str]) -> Route:
    """Return a route that answers 200 where ``problem`` says nothing, else 503 and what it says."""

    def answer() -> Answer:
        told = problem()
        return text(HTTPStatus.SERVICE_UNAVAILABLE if told else HTTPStatus.OK, told or "ok")

    return answer


@contextlib.contextmanager
def serving(address: tuple[str, int], routes: Mapping[str, Route]) -> Iterator[int]:
    """Serve ``routes`` (path to what answers it) at ``address`` while the context lasts; yield the port.

    Raises ServiceError where the address can't be had.
    """
    try:
        server = BoundedServer(address, _handler(address[0], routes))
    except OSError as error:
        raise ServiceError(f"can't listen on {address[0]}:{address[1]}: {error}; --listen says where to") from error
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.end()
        thread.join()
        server.server_close()


def _handler(own_name: str, routes: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        def answer(self) -> Answer:
            host = self.headers["Host"]
            if host is not None and not names_this_host(host, own_name):
                asked = f"nothing is served under the name {host!r}"
                known = "ask by IP address, or by the name that --listen has"
                return text(HTTPStatus.MISDIRECTED_REQUEST, f"{asked}: {known}")
            route = routes.get(self.path.partition("?")[0])
            return text(HTTPStatus.NOT_FOUND, f"there is {' and '.join(routes)}") if route is None else route()

    return Handler


class _Handler(BaseHTTPRequestHandler):
    """Takes one request and sends the answer, with headers that keep a browser from doing more with it."""

    timeout = TAKE_WITHIN

    def setup(self) -> None:
        """Take the head of the request as a whole, which what follows reads line by line. Raises OSError."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(read_head(self.connection, time.monotonic() + TAKE_WITHIN))
        self.connection.settimeout(TAKE_WITHIN)

    def answer(self) -> Answer:
        """Return the answer. Raises TimeoutError where the event loop has none."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer."""
        try:
            answer = self.answer()
        except TimeoutError:
            told = f"the event loop has not answered for {ANSWER_WITHIN:.0f} s"
            answer = text(HTTPStatus.SERVICE_UNAVAILABLE, told)
        self._send(answer)

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Say in a line what is wrong with a request; to the base class any further method is an unknown one."""
        self.request_version = self.protocol_version  # else one that can't be read is answered like HTTP/0.9
        other_method = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if other_method else HTTPStatus(code)
        self._send(text(status, "there is GET and HEAD" if other_method else status.phrase))

    def _send(self, answer: Answer) -> None:
        asked = getattr(self, "headers", None) or {}  # there are none where the first line is wrong already
        if answer.tag and f'"{answer.tag}"' in asked.get("If-None-Match", ""):
            answer = answer._replace(status=HTTPStatus.NOT_MODIFIED, body=b"", packed=False)
        packed = answer.packed and _TAKES_GZIP.search(asked.get("Accept-Encoding", "")) is not None
        body = gzip.decompress(answer.body) if answer.packed and not packed else answer.body
        own = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(body)),
            "Content-Encoding": "gzip" if packed else "",
            "Vary": "Accept-Encoding" if answer.packed else "",
            "ETag": f'W/"{answer.tag}"' if answer.tag else "",
            "Allow": "GET, HEAD" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else "",
        }
        self.send_response(answer.status)
        for name, value in (own | _HEADERS).items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Tell nothing of the interpreter."""
        return "aosp-plugin"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing: a probe a second is no event."""


def names_this_host(host: str, own_name: str) -> bool:
    """Say whether the header ``Host`` may lead here: to an address, to localhost or to ``own_name``.

    Any other name is one that a page in somebody's browser may have had resolved to this address, to read from us what
    it could not read otherwise (DNS rebinding).
    """
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        if name in {"localhost", own_name.lower()}:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
