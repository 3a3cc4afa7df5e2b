"""A listening socket for untrusted clients, with limits on what each connection can use.

A connection serves one request and has limits in size and time. When all connections are in use, a new one closes the
oldest of the address that has most, so that slow or many clients cannot lock out a probe. From which address the node
sends its probes depends on its network plugin. ``http`` defines what is served.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)

CLIENT_TIMEOUT = 10.0
"""Seconds for a client to send its request, and the same again to receive the answer."""

MAX_CONNECTIONS = 16
"""Concurrent connections. A browser opens six per server, a kubelet one per probe."""

ACCEPT_RETRY = 0.5
"""Seconds until connections are accepted again after descriptors or memory ran out."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept(2) that leave the connection in the queue: the listening socket stays readable."""

MAX_REQUEST_SIZE = 16 * 1024
"""Bytes."""


class BoundedServer(socketserver.ThreadingTCPServer):
    """Handles each connection in its own daemon thread, which does not delay the end of the process."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handle: Callable[[socket.socket, Any, BoundedServer], object]) -> None:
        """Accept the connections of ``listener``, and close it at the end.

        ``handle`` is called with each connection and the address of its client, in the connection's thread.
        """
        self._open: dict[socket.socket, str] = {}
        """Open connections, the oldest first, with the address of the client; empty if shut down to make room."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._exhausted = False
        """Whether the last attempt to accept a connection found no descriptor or memory."""
        self._stop_sender, self._stop_receiver = socket.socketpair()
        socketserver.BaseServer.__init__(self, listener.getsockname(), handle)  # type: ignore[arg-type] # any callable
        self.socket = listener
        self.socket.settimeout(0.0)  # a client may disconnect before it is accepted

    def run(self) -> None:
        """Serve until ``stop`` is called, without the periodic wake-ups of ``serve_forever``."""
        with (
            selectors.PollSelector() as selector
        ):  # epoll would need a descriptor, and the thread would end without one
            for readable in (self.socket, self._stop_receiver):
                selector.register(readable, selectors.EVENT_READ)
            while all(key.fileobj is not self._stop_receiver for key, _ in selector.select()):
                self._handle_request_noblock()  # type: ignore[attr-defined] # as in serve_forever
                if self._exhausted:
                    self._stopping.wait(ACCEPT_RETRY)

    def stop(self) -> None:
        """Make ``run`` return. Called in another thread."""
        self._stopping.set()
        self._stop_sender.send(b"!")

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises OSError."""
        try:
            accepted = super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED and not self._exhausted:
                LOG.warning("HTTP connections cannot be accepted, retrying", extra={"error": str(error)})
            self._exhausted = error.errno in _EXHAUSTED
            raise
        self._exhausted = False
        return accepted

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept a connection and close another one if necessary. Refuse it if closed ones are slow to end."""
        with self._lock:
            if len(self._open) >= 2 * MAX_CONNECTIONS:
                return False
            active = {connection: address for connection, address in self._open.items() if address}
            if len(active) >= MAX_CONNECTIONS:
                counts = Counter(active.values())
                self._shut_down(max(active, key=lambda connection: counts[active[connection]]))
            self._open[request] = client_address[0]
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening. Open connections are answered nevertheless: another server may have taken over the socket."""
        super().server_close()
        self._stop_sender.close()
        self._stop_receiver.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Log errors of the plugin. A client that is slow or disconnects is not logged."""
        error = sys.exception()
        if not isinstance(error, OSError):
            LOG.error("HTTP request failed", exc_info=error)

    def _shut_down(self, connection: socket.socket) -> None:
        self._open[connection] = ""
        with contextlib.suppress(OSError):  # already disconnected
            connection.shutdown(socket.SHUT_RDWR)


def read_head(connection: socket.socket, deadline: float) -> bytes:
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
