"""A read-only HTTP server for probes, metrics and people: the standard library's, in threads of its own.

A route is a function that returns an ``Answer``, and is called in the thread of its connection. Routes that need the
event loop call it through ``in_loop``; the server still answers when the loop is stuck.

``connections`` limits what a connection can use. ``requests`` reads requests; it is imported with the first one, since
the standard library's parser loads that of e-mail, which takes two megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aosp_plugin.framework.service.connections import BoundedServer
from aosp_plugin.framework.service.listening import listen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping

    Route = Callable[[], "Answer"]

T = TypeVar("T")

LOOP_TIMEOUT = 2.0
"""Seconds for the event loop to answer."""

TEXT = "text/plain; charset=utf-8"


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
    names = frozenset(name.lower() for name in allowed_hosts) | {"localhost"}

    def handle(connection: socket.socket, address: Any, server: BoundedServer) -> None:
        from aosp_plugin.framework.service.requests import Handler  # noqa: PLC0415 - with the first request, see above

        Handler(routes, names, connection, address, server)

    server = BoundedServer(listener, handle)
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.stop()
        thread.join()
        server.server_close()
