"""A listening socket whose clients may be anybody, and what each of them may take of the process.

A connection has one request, little memory and little time. There are few at a time, and each newcomer beyond these
ends the oldest one, so that nobody who is slow keeps a probe away. What is said over them is ``http``'s matter.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import socketserver
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

LOG = logging.getLogger(__name__)

TAKE_WITHIN = 10.0
"""Seconds for a client to send its request, and again as many to take the answer."""

MOST_CONNECTIONS = 16
"""At a time. A browser has six to a server, a kubelet one for each probe."""

LONGEST_HEAD = 16 * 1024
"""Bytes of a request."""


class BoundedServer(ThreadingHTTPServer):
    """Handles each connection in a thread of its own: a daemon, for which nobody waits."""

    request_queue_size = 4 * MOST_CONNECTIONS
    """Who does not find room among those that wait to be accepted tries again after a second."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        """Listen at ``address``. Raises OSError."""
        self._open: dict[socket.socket, bool] = {}
        """The oldest first; whether it was cut off."""
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._end, self._ended = socket.socketpair()
        super().__init__(address, handler)
        self.socket.settimeout(0.0)  # for a client that goes away before it is accepted

    def run(self) -> None:
        """Serve until ``end`` is called. The base class's own loop looks twice a second whether it is to end."""
        with selectors.DefaultSelector() as selector:
            for one in (self.socket, self._ended):
                selector.register(one, selectors.EVENT_READ)
            while all(key.fileobj is not self._ended for key, _ in selector.select()):
                self.handle_request()

    def end(self) -> None:
        """Have ``run`` return; from another thread."""
        self._end.send(b"!")

    def server_bind(self) -> None:
        """Bind, without asking the name service what this host is called, as the base class does."""
        socketserver.TCPServer.server_bind(self)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class's
        """Make room for a connection; refuse it where those that were cut off are slow to end."""
        with self._lock:
            if len(self._open) >= 2 * MOST_CONNECTIONS:
                return False
            waiting = [one for one, cut in self._open.items() if not cut]
            if len(waiting) >= MOST_CONNECTIONS:
                self._cut(waiting[0])
            self._open[request] = False
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Listen no longer, and cut off whoever is connected."""
        super().server_close()
        self._end.close()
        self._ended.close()
        with self._lock:
            for one in self._open:
                self._cut(one)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """Log what is a fault of ours; a client that is slow or goes away is no event."""
        error = sys.exception()
        if not isinstance(error, OSError):
            LOG.error("a request could not be answered", exc_info=error)

    def _cut(self, connection: socket.socket) -> None:
        self._open[connection] = True
        with contextlib.suppress(OSError):  # it went away by itself
            connection.shutdown(socket.SHUT_RDWR)


def read_head(connection: socket.socket, deadline: float) -> bytes:
    """Return what a client sends up to an empty line, and perhaps more; nothing where it sends too much or ends.

    Raises OSError, also where it is not there by ``deadline`` (``time.monotonic``).
    """
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(4096)
        head += part
        if not part or len(head) > LONGEST_HEAD:
            return b""
    return head
