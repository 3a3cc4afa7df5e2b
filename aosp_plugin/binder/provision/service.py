"""The privileged process of a plugin without privileges: it mounts and removes phones on request.

It accepts no more than a plugin requests that works: phones by their names, in the directories of the configuration. So
a plugin in the hands of an attacker gets no other file system mounted, and running containers keep what they have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socketserver
import sys
import threading
from typing import TYPE_CHECKING, Any

from aosp_plugin.binder.devices.phones import phone_id, phone_number
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision.phones import PhoneProvisioner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

REQUEST_TIMEOUT = 5.0
"""Seconds for a request to arrive, while no other one is answered."""

LONGEST_REQUEST = 1 << 20
"""Bytes: the names of tens of thousands of phones."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class RequestedPhones(PhoneProvisioner):
    """The phones of one directory, of which ``count`` may be mounted. For one thread."""

    def __init__(self, directory: str, host: Host, count: int) -> None:
        """See ``PhoneProvisioner``."""
        super().__init__(directory, host)
        self._allowed = {phone_id(number) for number in range(count)}

    def answer(self, operation: str, phones: Sequence[str], limit: int) -> dict[str, Any]:
        """Do what was requested, and return the answer. ``limit`` is that of ``remove``."""
        changed: list[str] = []
        error = ""
        try:
            changed = self._perform(operation, phones, limit)
        except HostError as refusal:
            error = str(refusal)
        return {
            "error": error,
            "changed": changed,
            "devices": self._devices,
            "foreign": [*self.foreign],
            "other_api": [*self.other_api],
            "failure": str(self.failure or ""),
            "obstacles": {phone: str(self.obstacles[phone]) for phone in phones if phone in self.obstacles},
        }

    def _perform(self, operation: str, phones: Sequence[str], limit: int) -> list[str]:
        if operation == "check":
            self.check()
            return []
        if operation == "remove":
            surplus = [phone for phone in phones if phone_number(phone) is not None and phone not in self._allowed]
            return self.remove(surplus, limit)
        unknown = [phone for phone in phones if phone not in self._allowed]
        if unknown:
            raise HostError(
                f"{unknown[0]!r} is not one of the {len(self._allowed)} phones that the provisioner started with: "
                "restart the plugin's pod"
            )
        if operation == "provision":
            return self.provision(phones)
        if operation != "replace":
            raise HostError(f"unknown operation {operation!r}")
        for phone in phones:
            self.replace(phone)
        return [*phones]


def serve(socket_path: str, directories: Mapping[str, RequestedPhones]) -> None:
    """Answer requests until SIGTERM or SIGINT, one after the other; the running one is completed. Raises OSError.

    To be called in the main thread before others start. The socket belongs to the user of this process alone.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)  # of a process that was killed
    with ProvisionerServer(socket_path, directories) as server:
        threading.Thread(target=server.serve_forever, name="requests", daemon=True).start()
        LOG.info("provisioner started", extra={"path": socket_path, "dir": ",".join(directories)})
        signal.sigwait(STOP_SIGNALS)
        server.shutdown()


class ProvisionerServer(socketserver.UnixStreamServer):
    """Answers the requests of one plugin."""

    request_queue_size = 64

    def __init__(self, socket_path: str, directories: Mapping[str, RequestedPhones]) -> None:
        super().__init__(socket_path, _Handler)
        self.directories = directories

    def server_bind(self) -> None:
        """Create the socket, which only this user can connect to."""
        previous = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(previous)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - of the base class
        """Log a request that cannot be read, or whose plugin has gone."""
        LOG.warning("request of the plugin failed", extra={"error": repr(sys.exc_info()[1])})


class _Handler(socketserver.StreamRequestHandler):
    server: ProvisionerServer
    timeout = REQUEST_TIMEOUT

    def handle(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.readline(LONGEST_REQUEST))
        phones = self.server.directories.get(request["directory"])
        if phones is None:
            answer = {"error": f"the provisioner's configuration has no phones in {request['directory']}"}
        else:
            operation = request["operation"]
            answer = phones.answer(operation, request["phones"], request.get("limit", 0))
            if operation == "replace" and not answer["error"]:
                LOG.info("phone replaced", extra={"device": ",".join(request["phones"])})
        self.wfile.write(json.dumps(answer).encode() + b"\n")
