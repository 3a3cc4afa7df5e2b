"""The privileged process of a plugin without privileges: it mounts and removes phones on request.

It accepts no more than the plugin needs: names of phones, in the directories of the configuration. So a plugin in the
hands of an attacker gets no other file system mounted, and running containers keep what they have.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import socketserver
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from aosp_plugin.binder.devices.phones import phone_id, phone_number
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision.phones import PhoneProvisioner

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

REQUEST_TIMEOUT = 2.0
"""Seconds for a whole request to arrive, and for its answer to be sent, while no other one is answered."""

LONGEST_REQUEST = 1 << 20
"""Bytes: the names of tens of thousands of phones."""

HANGING = 60.0
"""Seconds after which a request hangs, and the process ends: its supervisor starts another one."""

EXIT_WITHIN = 4.0
"""Seconds from SIGTERM until the process ends, whatever hangs: less than the grace period of its pod."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class RequestedPhones(PhoneProvisioner):
    """The phones of one directory, of which ``count`` may be mounted. For one thread."""

    def __init__(self, directory: str, host: Host, count: int) -> None:
        """See ``PhoneProvisioner``."""
        super().__init__(directory, host)
        self._configured = {phone_id(number) for number in range(count)}

    def answer(self, operation: str, phones: Sequence[str], limit: int) -> dict[str, Any]:
        """Do what was requested, and return what is known of ``phones``. ``limit`` is that of ``remove``."""
        changed: list[str] = []
        error = ""
        accepted = {phone: None for phone in phones if self._is_accepted(operation, phone)}
        try:
            changed = self._perform(operation, [*accepted], limit)
        except HostError as refusal:
            error = str(refusal)
        obstacles = {phone: str(self.obstacles[phone]) for phone in accepted if phone in self.obstacles}
        for phone in phones:
            if phone not in accepted:
                obstacles[phone] = (
                    f"cannot {operation} {phone!r}: the provisioner was started with {len(self._configured)} phones: "
                    "restart the plugin's pod"
                )
        return {
            "error": error,
            "changed": changed,
            "devices": {phone: self._devices[phone] for phone in accepted if phone in self._devices},
            "foreign": [*self.foreign.intersection(accepted)],
            "other_api": [*self.other_api.intersection(accepted)],
            "failure": str(self.failure or ""),
            "obstacles": obstacles,
        }

    def _is_accepted(self, operation: str, phone: str) -> bool:
        """Return whether this may be done with the phone: those beyond the configured number can only be removed."""
        return phone_number(phone) is not None and (phone in self._configured) == (operation != "remove")

    def _perform(self, operation: str, phones: Sequence[str], limit: int) -> list[str]:
        match operation:
            case "provision":
                return self.provision(phones)
            case "replace":
                for phone in phones:
                    self.replace(phone)
                    LOG.info("phone replaced", extra={"device": phone})
                return [*phones]
            case "remove":
                return self.remove(phones, limit)
            case "check":
                self.check()
                return []
            case _:
                raise HostError(f"unknown operation {operation!r}")


class ProvisionerServer(socketserver.UnixStreamServer):
    """Answers the requests of one plugin, one after the other. The socket belongs to the user of this process alone."""

    request_queue_size = 64

    def __init__(self, socket_path: str, directories: Mapping[str, RequestedPhones]) -> None:
        """Create the socket, and its directory for this user alone. Raises OSError.

        ``directories`` has the phones by the directory of the configuration.
        """
        os.makedirs(os.path.dirname(socket_path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)  # of a process that was killed
        super().__init__(socket_path, _Handler)
        self.directories = directories

    def server_bind(self) -> None:
        """Create the socket."""
        previous = os.umask(0o177)
        try:
            super().server_bind()
        except OSError as error:
            number = error.errno or errno.ENAMETOOLONG  # which Python finds itself
            raise OSError(number, os.strerror(number), self.server_address) from error
        finally:
            os.umask(previous)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - of the base class
        """Log a request that cannot be read, or whose plugin has gone."""
        LOG.warning("request of the plugin failed", extra={"error": repr(sys.exc_info()[1])})


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Answer one request."""
        connection: socket.socket = self.request
        request = json.loads(_line_from(connection))
        phones = cast("ProvisionerServer", self.server).directories.get(request["directory"])
        if phones is None:
            answer = {"error": f"the provisioner's configuration has no phones in {request['directory']}"}
        else:
            watchdog = threading.Timer(HANGING, os._exit, (1,))
            watchdog.start()
            try:
                answer = phones.answer(request["operation"], request["phones"], request.get("limit", 0))
            finally:
                watchdog.cancel()
        connection.settimeout(REQUEST_TIMEOUT)
        connection.sendall(json.dumps(answer).encode() + b"\n")


def serve(socket_path: str, directories: Mapping[str, RequestedPhones]) -> None:
    """Answer requests until SIGTERM or SIGINT, which are blocked; the running request is completed. Raises OSError.

    To be called in the main thread before others start.
    """
    with ProvisionerServer(socket_path, directories) as server:
        threading.Thread(target=_stop_on_signal, args=(server,), name="signals", daemon=True).start()
        LOG.info("provisioner started", extra={"path": socket_path, "dir": ",".join(directories)})
        server.serve_forever()


def _stop_on_signal(server: ProvisionerServer) -> None:
    signal.sigwait(STOP_SIGNALS)
    end = threading.Timer(EXIT_WITHIN, os._exit, (0,))
    end.daemon = True
    end.start()
    server.shutdown()


def _line_from(connection: socket.socket) -> bytes:
    """Read a line. Raises ValueError if it is too long or incomplete, TimeoutError after ``REQUEST_TIMEOUT``."""
    end = time.monotonic() + REQUEST_TIMEOUT
    line = bytearray()
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(1 << 16)
        line += part
        if not part or len(line) > LONGEST_REQUEST:
            raise ValueError(f"no whole request in {len(line)} bytes")
    return bytes(line)
