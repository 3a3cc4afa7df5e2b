"""Phones of a plugin without privileges: a privileged process mounts and removes them on request.

That process is ``aosp-plugin provisioner`` (``service``). Each request is a connection to its Unix socket: a JSON
object in one line, and another one as the answer.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from aosp_plugin.binder.errors import HostError, ProvisionerError
from aosp_plugin.binder.provision.phones import PhoneProvisioner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

SOCKET = "/run/aosp-plugin/provisioner.sock"
"""In the containers of the plugin's pod its directory is a volume; on a host, root's."""

TIMEOUT = 8.0
"""Seconds for an answer: less than a scan, a check of the host and PreStartContainer may take, so that their errors
name the provisioner."""


class RemotePhoneProvisioner(PhoneProvisioner):
    """Keeps the binderfs mounts of phones in place by requests. For one worker thread."""

    def provision(self, phones: Collection[str]) -> list[str]:
        """See ``PhoneProvisioner``. Raises HostError also if the provisioner does not answer."""
        return self._request("provision", [*phones]) if phones or self.failure is not None else []

    def replace(self, phone: str) -> None:
        """See ``PhoneProvisioner``."""
        if not self._request("replace", [phone]):
            raise self.obstacles[phone]

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """See ``PhoneProvisioner``."""
        return self._request("remove", [*phones], limit=limit)

    def check(self) -> None:
        """See ``PhoneProvisioner``."""
        self._request("check", [])

    def _request(self, operation: str, phones: Sequence[str], **arguments: int) -> list[str]:
        """Let the provisioner do something, and take over what it knows of the phones. Return those it changed."""
        request = {"directory": self._host_directory, "operation": operation, "phones": phones, **arguments}
        answer = self._exchange(request)
        if "devices" in answer:
            for phone in phones:
                self._devices.pop(phone, None)
                self.obstacles.pop(phone, None)
            self._devices.update(answer["devices"])
            self.obstacles.update({phone: HostError(text) for phone, text in answer["obstacles"].items()})
            self.foreign = self.foreign.difference(phones).union(answer["foreign"])
            self.other_api = self.other_api.difference(phones).union(answer["other_api"])
            self._failure = HostError(answer["failure"]) if answer["failure"] else None
        if answer["error"]:
            raise HostError(answer["error"])
        changed: list[str] = answer["changed"]
        return changed

    def _exchange(self, request: object) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT)
                connection.connect(SOCKET)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as file:
                    answer: dict[str, Any] = json.loads(file.readline())
                    return answer
        except (OSError, ValueError) as error:  # ValueError: the connection ended within the answer
            cause = "no whole answer" if isinstance(error, ValueError) else error.strerror or str(error)
            raise ProvisionerError(
                f"the provisioner at {SOCKET} does not answer: {cause}: its container's log has the reason"
            ) from error
