"""The kubelet as a plugin meets it: its directory, the identity of its socket, and Register."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import urllib.parse
from typing import NamedTuple

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as pb_grpc
from aosp_plugin.framework.errors import KubeletDirectoryError, RegistrationFailedError, RegistrationRefusedError

VERSION = "v1beta1"
"""The only version a kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go, SupportedVersions)."""

SOCKET = "kubelet.sock"

LONGEST_SOCKET_PATH = 107
"""Bytes of a unix socket's path: sun_path has 108 with its terminating NUL (include/uapi/linux/un.h)."""

_PERMANENT = re.compile(
    r"the ResourceName .* is invalid|requested API version .* is not supported by kubelet", re.DOTALL
)
"""Refusals that no retry heals, in the kubelet's words (pkg/kubelet/cm/devicemanager/types.go,
``errInvalidResourceName`` and ``errUnsupportedVersion``); gRPC hands them on with code UNKNOWN."""


class SocketIdentity(NamedTuple):
    """Tells a kubelet's socket from that of the next one. Inode numbers are used again at once; ctime is not."""

    device: int
    inode: int
    changed: int
    """st_ctime in nanoseconds."""


def identify(path: str) -> SocketIdentity | None:
    """Return the identity of the file at ``path``; None where there is none."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return SocketIdentity(seen.st_dev, seen.st_ino, seen.st_ctime_ns)


def socket_address(path: str) -> str:
    """Return the address that gRPC knows the socket at ``path`` by: a URI, so that a space or % is escaped."""
    return "unix:" + urllib.parse.quote(path)


class PluginDirectory:
    """The directory where the kubelet and its plugins meet, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, stem: str) -> None:
        """``stem`` begins the name of every socket of this plugin, and of no other's."""
        self.path = path
        self._stem = stem
        self._last_number = 0

    @property
    def kubelet_socket(self) -> str:
        """The path of the kubelet's own socket."""
        return os.path.join(self.path, SOCKET)

    def check(self) -> None:
        """Raise KubeletDirectoryError where the plugin could never serve in this directory."""
        if not os.path.isdir(self.path):
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} does not exist: is this a node with a kubelet, and is "
                "the directory mounted into this container?"
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} is not writable for uid {os.getuid()}: the kubelet makes "
                "it for root alone (0750)"
            )
        longest = len(os.fsencode(os.path.join(self.path, self._name(4194304, 10**13))))
        if longest > LONGEST_SOCKET_PATH:
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} is {longest - LONGEST_SOCKET_PATH} bytes too long: a "
                f"socket's path has at most {LONGEST_SOCKET_PATH}"
            )

    def next_endpoint(self, now: float) -> str:
        """Return a socket's name that was never used before: a kubelet mixes up two registrations that share one.

        The process ID does not do for that: in a container it is the same after each restart. So the number is
        the time, ``now`` seconds since the epoch, in milliseconds, and at least one more than the last.
        """
        self._last_number = max(self._last_number + 1, int(now * 1000))
        return self._name(os.getpid(), self._last_number)

    def sweep(self) -> list[str]:
        """Remove the sockets that a killed predecessor left, and return their names.

        One that answers belongs to a plugin that lives, as for a moment during a rolling update: it stays.
        """
        own = re.compile(re.escape(self._stem) + r"-[0-9]{1,7}-[0-9]{1,14}\.sock")
        with os.scandir(self.path) as entries:
            sockets = [entry.name for entry in entries if own.fullmatch(entry.name) and not entry.is_dir()]
        stale = [name for name in sockets if not _answers(os.path.join(self.path, name))]
        for name in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))
        return stale

    def _name(self, pid: int, number: int) -> str:
        return f"{self._stem}-{pid}-{number}.sock"


def _answers(path: str) -> bool:
    """Say whether a process listens on the socket at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True
    return True


async def register(kubelet_socket: str, request: pb.RegisterRequest, deadline: float) -> None:
    """Register a plugin that serves already, and wait ``deadline`` seconds for the answer at the most.

    The plugin must serve first: since 1.25 the kubelet dials it and asks for its options before it answers
    (pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go ``Register``), and has no deadline of its own for that.

    The authority is set because C-core would send the socket's path, %-encoded; a channel's connections are not
    shared because a connection that failed a moment ago would make the next channel wait out its backoff.

    Nothing is raised before the call is let go of: whoever keeps the error would keep the call with its traceback, and
    with that the connection, which no closing of the channel ends.

    Raises RegistrationRefusedError or RegistrationFailedError.
    """
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(socket_address(kubelet_socket), options=options) as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=deadline)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            text = error.details() or code
        else:
            return
    if _PERMANENT.search(text):
        raise RegistrationRefusedError(f"the kubelet at {kubelet_socket} refuses {request.resource_name}: {text}")
    raise RegistrationFailedError(f"{code}: {text}")
