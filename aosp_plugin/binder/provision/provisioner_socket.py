"""Phones of a plugin without privileges: a privileged process mounts and removes them on request.

That process is ``aosp-plugin provisioner``. Each request is a connection to its Unix socket: a JSON object in one line,
which is answered by another line. It accepts only the names of phones, in the directories of the configuration: an
attacker who controls the plugin gets no other file system mounted, and running containers keep what they have.
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from aosp_plugin.binder.devices.sets import is_phone, phone_id
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner

LOG = logging.getLogger(__name__)

PROVISIONER_SOCKET = "/run/aosp-plugin/provisioner.sock"
"""Its directory is a volume of the plugin's pod, or belongs to root on a host."""

ANSWER_TIMEOUT = 8.0
"""Seconds for an answer: less than a scan, a check of the host and PreStartContainer may take, so that their errors
name the provisioner."""

REQUEST_TIMEOUT = 2.0
"""Seconds for a request to arrive, and for its answer to be sent; other requests wait meanwhile."""

LONGEST_REQUEST = 1 << 20
"""Bytes: the names of tens of thousands of phones."""

_LONGEST_ERROR = 200
"""Characters of the error of a request that are logged."""

HANGING = 60.0
"""Seconds after which a request counts as hanging, and the process ends: its supervisor starts it again."""

PROVISIONER_EXIT_WITHIN = 4.0
"""Seconds from SIGTERM until the process ends, whatever hangs: less than the grace period of its pod."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class ProvisionerError(HostError):
    """The provisioner does not answer."""


class RemotePhoneProvisioner(PhoneProvisioner):
    """Keeps the binderfs mounts of phones in place by requests. For one worker thread."""

    def provision(self, phones: Collection[str]) -> list[str]:
        """See ``PhoneProvisioner``. Raises HostError also if the provisioner does not answer."""
        mounted = self._request("provision", [*phones])
        self.survey()
        return mounted

    def replace(self, phone: str) -> None:
        """See ``PhoneProvisioner``."""
        if not self._request("replace", [phone]):
            raise self.phone_errors[phone]
        self.is_mounted(phone)  # to know the new binderfs

    def remove(self, phones: Iterable[str], limit: int) -> list[str]:
        """See ``PhoneProvisioner``."""
        return self._request("remove", [*phones], limit=limit)

    def check(self) -> None:
        """See ``PhoneProvisioner``."""
        self._request("check", [])

    def _request(self, operation: str, phones: Sequence[str], **arguments: int) -> list[str]:
        """Let the provisioner do something, and take over its errors. Return the phones that it changed."""
        request = {"directory": self._host_directory, "operation": operation, "phones": phones, **arguments}
        answer = self._exchange(request)
        if answer["error"]:
            raise HostError(answer["error"])
        for phone in phones:
            self._forget(phone)
        self.phone_errors.update({phone: HostError(text) for phone, text in answer["phone_errors"].items()})
        self.mount_error = HostError(answer["mount_error"]) if answer["mount_error"] else None
        changed: list[str] = answer["changed"]
        return changed

    def _exchange(self, request: object) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_TIMEOUT)
                connection.connect(PROVISIONER_SOCKET)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as file:
                    answer: dict[str, Any] = json.loads(file.readline())
                    return answer
        except (OSError, ValueError) as error:  # ValueError: the connection ended within the answer
            cause = "no whole answer" if isinstance(error, ValueError) else error.strerror or str(error)
            raise ProvisionerError(
                f"the provisioner at {PROVISIONER_SOCKET} does not answer: {cause}: its container's log has the reason"
            ) from error


class RequestedPhones(PhoneProvisioner):
    """The phones of one directory, of which ``count`` may be mounted. For one thread."""

    def __init__(self, directory: str, host: Host, count: int) -> None:
        """See ``PhoneProvisioner``."""
        super().__init__(directory, host)
        self._configured = {phone_id(number) for number in range(count)}
        self._limit = f"the provisioner was started with {count} phones"

    def answer(self, operation: str, phones: Sequence[str], limit: int) -> dict[str, Any]:
        """Perform a request; return the phones that it changed, and errors. ``limit`` is for ``remove``."""
        names = dict.fromkeys(phones)
        try:
            accepted = dict.fromkeys(phone for phone in names if self._accepts(operation, phone))
            changed = self._perform(operation, [*accepted], limit)
        except HostError as error:
            return {"error": str(error), "changed": []}
        refused = f"{self._limit}: restart the plugin's pod"
        errors = {phone: f"cannot {operation} {phone!r}: {refused}" for phone in names if phone not in accepted}
        errors |= {phone: str(self.phone_errors[phone]) for phone in accepted if phone in self.phone_errors}
        mount_error = str(self.mount_error or "")
        return {"error": "", "changed": changed, "mount_error": mount_error, "phone_errors": errors}

    def _accepts(self, operation: str, phone: str) -> bool:
        """Return whether an operation may concern a phone: those of the configuration are never removed.

        Others are removed, or replaced for the pod that has one, whose container starts again. They never get their
        first binderfs. Raises HostError, also for a name that is no phone.
        """
        if not is_phone(phone):
            raise HostError(f"{phone[:_LONGEST_ERROR]!r} is not a phone")
        if phone in self._configured:
            return operation != "remove"
        return operation == "remove" or (operation == "replace" and self.is_mounted(phone))

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
        """Create the socket, and its directory for this user alone.

        ``directories`` has the phones by the directory of the configuration. Raises HostError if another process serves
        on the socket, and OSError.
        """
        directory = os.path.dirname(socket_path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # until the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostError(
                f"another process serves as provisioner on {socket_path}: a host needs one, so end that one or this one"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)  # of a process that was killed
        super().__init__(socket_path, _Handler)
        self.directories = directories

    def server_bind(self) -> None:
        """Create the socket."""
        previous = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(previous)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - of the base class
        """Log a request that cannot be read, or whose plugin has gone."""
        error = sys.exception()
        text = f"{type(error).__name__}: {error}"  # its repr may have the whole request
        LOG.warning("request of the plugin failed", extra={"error": text[:_LONGEST_ERROR]})


class _Handler(socketserver.StreamRequestHandler):
    timeout = REQUEST_TIMEOUT

    def handle(self) -> None:
        """Answer one request."""
        # The timeout of the socket is one for each part of a request, and a client may send it byte by byte.
        deadline = threading.Timer(REQUEST_TIMEOUT, self.connection.shutdown, (socket.SHUT_RD,))
        deadline.start()
        line = self.rfile.readline(LONGEST_REQUEST)
        deadline.cancel()
        watchdog = threading.Timer(HANGING, os._exit, (1,))
        watchdog.start()
        try:
            request = json.loads(line)
            phones = cast("ProvisionerServer", self.server).directories.get(request["directory"])
            if phones is None:
                answer = {"error": f"the provisioner's configuration has no phones in {request['directory']}"}
            else:
                answer = phones.answer(request["operation"], request["phones"], request.get("limit", 0))
        finally:
            watchdog.cancel()
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def serve_requests(socket_path: str, directories: Mapping[str, RequestedPhones]) -> None:
    """Answer requests until SIGTERM or SIGINT, which are blocked; the running request is completed.

    To be called in the main thread before others start. Raises OSError, and HostError if another process serves on the
    socket.
    """
    with ProvisionerServer(socket_path, directories) as server:
        threading.Thread(target=_stop_on_signal, args=(server,), name="signals", daemon=True).start()
        LOG.info("provisioner started", extra={"path": socket_path, "dir": ",".join(directories)})
        server.serve_forever()


def _stop_on_signal(server: ProvisionerServer) -> None:
    signal.sigwait(STOP_SIGNALS)
    end = threading.Timer(PROVISIONER_EXIT_WITHIN, os._exit, (0,))
    end.daemon = True
    end.start()
    server.shutdown()
