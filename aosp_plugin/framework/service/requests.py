"""Reads the requests of ``http``'s connections, and sends the answers: the standard library's parser of requests."""

from __future__ import annotations

import gzip
import io
import ipaddress
import logging
import re
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from aosp_plugin.framework.service import http
from aosp_plugin.framework.service.connections import CLIENT_TIMEOUT, read_head
from aosp_plugin.framework.service.http import Answer, text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aosp_plugin.framework.service.http import Route

LOG = logging.getLogger(__name__)

_SECURITY_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_ACCEPTS_GZIP = re.compile(r"(^|[\s,])gzip\s*(;\s*q=(0\.\d*[1-9]\d*|1(\.0*)?)\s*)?(,|$)")


class Handler(BaseHTTPRequestHandler):
    """Reads one request and sends the answer, with headers that restrict what a browser does with it."""

    timeout = CLIENT_TIMEOUT

    def __init__(self, routes: Mapping[str, Route], names: Collection[str], *connection: Any) -> None:
        """Handle the request. ``names`` are the own host names in lower case."""
        self._routes, self._names = routes, names
        super().__init__(*connection)

    def setup(self) -> None:
        """Read the whole head of the request with one deadline; the base class parses it. Raises OSError."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(read_head(self.connection, time.monotonic() + CLIENT_TIMEOUT))
        self.connection.settimeout(CLIENT_TIMEOUT)

    def answer(self) -> Answer:
        """Return the answer. Raises TimeoutError if the event loop is stuck."""
        host = self.headers["Host"]
        if host is not None and not is_own_host(host, self._names):
            hint = "use an IP address, or add the name to allowed_hosts"
            return text(HTTPStatus.MISDIRECTED_REQUEST, f"unknown host name {host!r}: {hint}")
        route = self._routes.get(self.path.partition("?")[0])
        return route() if route else text(HTTPStatus.NOT_FOUND, "not found")

    def do_GET(self) -> None:
        """Send the answer."""
        try:
            answer = self.answer()
        except TimeoutError:
            message = f"the event loop has not answered for {http.LOOP_TIMEOUT:.0f} s"
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
