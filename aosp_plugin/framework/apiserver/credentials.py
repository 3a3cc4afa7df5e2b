"""The API server's address, and a pod's token and certificate authority, which the kubelet replaces while it runs.

The kubelet mounts the files of a service account into each container and replaces the token at 80 % of its lifetime,
an hour by default. The files are read in a worker thread, because their file system may hang.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aosp_plugin.framework.apiserver.errors import CredentialsError, Request
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts token and ca.crt."""
TOKEN: Final = "token"  # noqa: S105 - a file name
CERTIFICATES: Final = "ca.crt"
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

REFRESH: Final = 60.0
"""Seconds after which the files are read again."""
READ_TIMEOUT: Final = 5.0
"""Seconds that a reading of the files may take."""
MAX_SIZE: Final = 1 << 20
"""Bytes of a file."""

_VALID_TOKEN = re.compile(rb"[\x21-\x7e]+")


class Access(NamedTuple):
    """What a request requires."""

    token: str
    """Bearer token; empty for none."""
    tls: ssl.SSLContext | None
    """None for HTTP without TLS."""


class Credentials(Protocol):
    """Where the API server is, and how to authenticate to it."""

    @property
    def url(self) -> str:
        """URL without a path, such as https://10.96.0.1:443."""

    async def access(self, request: Request, *, rejected: str = "") -> Access:
        """Return the current credentials for a request. ``rejected`` is a token that the server has just rejected.

        Raises CredentialsError if there are none.
        """

    def close(self) -> None:
        """Release what the credentials hold. No call may follow."""


class StaticCredentials:
    """Credentials that do not change, for tests and for other programs."""

    def __init__(self, url: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        """``url`` begins with http or https; https requires ``tls``."""
        self.url = url
        self._access = Access(token, tls)

    async def access(self, _request: Request, *, rejected: str = "") -> Access:  # noqa: ARG002 - they never change
        """Return the credentials."""
        return self._access

    def close(self) -> None:
        """Do nothing."""


class ServiceAccountMissingError(PluginError):
    """The process has no service account, or does not know the API server's address."""


class ServiceAccount:
    """The credentials of a pod, or of another process with the same environment variables and files.

    For one event loop. Files that can no longer be read are logged once, and the last token and certificates stay in
    use.
    """

    def __init__(self, url: str, directory: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``directory`` has the files ``token`` and ``ca.crt``; ``clock`` returns seconds."""
        self.url = url
        self._directory = directory
        self._clock = clock
        self._worker = Worker("service account")
        self._lock = asyncio.Lock()  # one reading at a time
        self._access: Access | None = None
        self._certificates = b""
        self._read_at = 0.0
        self._problem = ""

    async def access(self, request: Request, *, rejected: str = "") -> Access:
        """Return token and TLS context. The files are read at most once a minute, and if a token was rejected."""
        async with self._lock:
            if self._access is None or self._due() or rejected == self._access.token:
                await self._refresh()
            if self._access is None:
                raise CredentialsError(request, self._problem)
            return self._access

    def close(self) -> None:
        """End the worker thread."""
        self._worker.close()

    def _due(self) -> bool:
        return self._clock() - self._read_at >= REFRESH

    async def _refresh(self) -> None:
        """Read the files; on an error, keep what there is."""
        self._read_at = self._clock()
        read = partial(_read, self._directory, self._certificates, self._access)
        try:
            self._certificates, self._access = await self._worker.run(
                read, READ_TIMEOUT, label=f"reading the files in {self._directory}"
            )
        except (OSError, ValueError, WorkerTimeoutError) as error:
            self._fail(_explain(error, self._directory))
        else:
            if self._problem:
                LOG.info("credentials of the API server recovered", extra={"directory": self._directory})
            self._problem = ""

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            LOG.error("credentials of the API server are unavailable", extra={"error": problem})
        self._problem = problem


def in_cluster(
    directory: str = SERVICE_ACCOUNT_DIRECTORY, environment: Mapping[str, str] = os.environ
) -> ServiceAccount:
    """Return the credentials of this pod; the files are read at the first request.

    Raises ServiceAccountMissingError if the environment does not have the API server's address.
    """
    host, port = environment.get(HOST, ""), environment.get(PORT, "")
    if not host or not port:
        raise ServiceAccountMissingError(
            f"{HOST} and {PORT} must be set to connect to the API server: the kubelet sets them in each container; "
            "outside a pod, set them to the API server's address"
        )
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ServiceAccountMissingError(f"{PORT}={port!r} is not a port number")
    if not re.fullmatch(r"[0-9A-Za-z.:_-]+", host):
        raise ServiceAccountMissingError(f"{HOST}={host!r} is neither an IP address nor a host name")
    return ServiceAccount(f"https://{f'[{host}]' if ':' in host else host}:{port}", directory)


def tls_context(certificates: bytes) -> ssl.SSLContext:
    """Return a context that trusts only these certificates, in PEM. Raises ValueError if they cannot be used."""
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # unlike a default context, it never trusts the system's authorities
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"is not a file of certificates in PEM: {error}") from error
    # Go, with which Kubernetes verifies certificates, accepts authorities without a key identifier (Python 3.13 does
    # not by default), and takes an intermediate certificate in the file as trusted.
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _read(directory: str, known: bytes, access: Access | None) -> tuple[bytes, Access]:
    """Return the certificates and the credentials; called in the worker thread."""
    token = _content(os.path.join(directory, TOKEN)).strip()
    if not _VALID_TOKEN.fullmatch(token):
        raise ValueError(f"{os.path.join(directory, TOKEN)} has no token")
    path = os.path.join(directory, CERTIFICATES)
    certificates = _content(path)
    context = access.tls if access is not None and certificates == known else None
    if context is None:
        try:
            context = tls_context(certificates)
        except ValueError as error:
            raise ValueError(f"{path} {error}") from error
    return certificates, Access(token.decode("ascii"), context)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise ValueError(f"{path} has more than {MAX_SIZE} bytes")
    return content


def _explain(error: Exception, directory: str) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{error.filename} does not exist: mount the service account's token and {CERTIFICATES} at {directory} "
            "(serviceAccountName, automountServiceAccountToken: true)"
        )
    if isinstance(error, OSError):
        return f"cannot read {error.filename or directory}: {error.strerror or error}"
    return str(error)
