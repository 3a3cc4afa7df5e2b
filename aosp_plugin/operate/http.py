"""/healthz and /readyz for the kubelet's probes: the standard library's server, in a thread of its own.

What is wrong is asked in the event loop, so that a loop that is stuck is found as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from aosp_plugin.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Checks = Mapping[str, Callable[[], str]]

ANSWER_WITHIN = 2.0
"""Seconds for the event loop to answer."""


@contextlib.contextmanager
def serving(address: tuple[str, int], checks: Checks) -> Iterator[int]:
    """Serve ``checks`` (path to a function that says what is wrong, or nothing) at ``address``; yield the port.

    To be entered in the running event loop in which the checks are to be called. Nothing wrong is answered with 200,
    anything else with 503 and what it is. Raises HostError where the address can't be had.
    """
    loop = asyncio.get_running_loop()

    async def ask(check: Callable[[], str]) -> str:
        return check()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            check = checks.get(self.path.partition("?")[0])
            if check is None:
                self._answer(HTTPStatus.NOT_FOUND, f"there is {' and '.join(checks)}")
                return
            try:
                problem = asyncio.run_coroutine_threadsafe(ask(check), loop).result(ANSWER_WITHIN)
            except TimeoutError:
                problem = f"the event loop has not answered for {ANSWER_WITHIN:.0f} s"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, problem or "ok")

        def _answer(self, status: HTTPStatus, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            """Tell nothing of the interpreter."""
            return "aosp-plugin"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Log nothing: a probe a second is no event."""

    try:
        server = _server_class(address)(address, Handler)
    except OSError as error:
        raise HostError(f"can't listen on {address[0]}:{address[1]} for /healthz and /readyz: {error}") from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _server_class(address: tuple[str, int]) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    return Server
