"""The API server's address, and a pod's token and certificate authority, which the kubelet replaces while it runs.

The kubelet mounts the files of a service account into each container, in memory, and replaces the token at 80 % of its
lifetime, an hour by default.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from aosp_plugin.framework.apiserver.protocol import ApiUnavailableError, Request
from aosp_plugin.framework.conditions import CREDENTIALS_UNAVAILABLE, Conditions
from aosp_plugin.framework.errors import PluginError

HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"


class Access(NamedTuple):
    """Token and TLS context for a request."""

    token: str
    """Bearer token; empty for none."""
    tls: ssl.SSLContext | None
    """None for HTTP without TLS."""


class ServiceAccountMissingError(PluginError):
    """The process has no service account, or does not know the API server's address."""


class ServiceAccount:
    """The API server's address, and the credentials of a pod, or of another process with the same variables and files.

    The files are read for each request: they are in memory. Files that can no longer be read are logged once, and the
    last token and certificates stay in use.
    """

    def __init__(self, url: str, directory: str, *, conditions: Conditions, resource: str = "") -> None:
        """``url`` is without a path, such as https://10.96.0.1:443.

        ``directory`` has the files ``token`` and ``ca.crt``. ``resource`` is the one that requires them; empty if it is
        the whole process.
        """
        self.url = url
        self._access = Access("", None)
        self._conditions = conditions
        self._resource = resource
        self._token_file = os.path.join(directory, "token")
        self._certificate_file = os.path.join(directory, "ca.crt")
        self._certificates = b""
        self._refusal = ""
        """Why the files could not be read the last time, for people."""
        self._reading = asyncio.Lock()

    async def access(self, request: Request) -> Access:
        """Return token and TLS context. The files are read in a thread; other requests wait for it.

        Raises ApiUnavailableError if there is no token.
        """
        async with self._reading:
            await asyncio.to_thread(self._refresh)
        if not self._access.token:
            raise ApiUnavailableError(request, self._refusal)
        return self._access

    def _refresh(self) -> None:
        """Read the files; on an error, keep what there is."""
        problem, directory = "", os.path.dirname(self._token_file)
        try:
            self._read()
        except FileNotFoundError as error:
            problem = (
                f"{error.filename} does not exist: mount the service account's token and ca.crt at {directory} "
                "(serviceAccountName, automountServiceAccountToken: true)"
            )
        except OSError as error:
            problem = f"cannot read {error.filename or self._token_file}: {error.strerror or error}"
        except ValueError as error:
            problem = str(error)
        self._refusal = problem
        fields = {"directory": directory, "error": problem}
        self._conditions.set(CREDENTIALS_UNAVAILABLE, problem, resource=self._resource, **fields)

    def _read(self) -> None:
        with open(self._token_file, "rb") as token_file, open(self._certificate_file, "rb") as certificate_file:
            token, certificates = token_file.read().strip(), certificate_file.read()
        if not re.fullmatch(rb"[\x21-\x7e]+", token):
            raise ValueError(f"{self._token_file} has no token")
        tls = self._access.tls
        if tls is None or certificates != self._certificates:
            try:
                tls = tls_context(certificates)
            except (ValueError, ssl.SSLError) as error:
                raise ValueError(f"{self._certificate_file} is not a file of certificates in PEM: {error}") from error
        self._certificates, self._access = certificates, Access(token.decode("ascii"), tls)


def in_cluster(
    directory: str, environment: Mapping[str, str] = os.environ, *, conditions: Conditions, resource: str = ""
) -> ServiceAccount:
    """Return the credentials of this pod; the files are read at the first request. See ``ServiceAccount``.

    Raises ServiceAccountMissingError if the environment does not have the API server's address.
    """
    host, port = environment.get(HOST, ""), environment.get(PORT, "")
    if not host or not port:
        raise ServiceAccountMissingError(
            f"{HOST} and {PORT} must be set to connect to the API server: the kubelet sets them in each container; "
            "outside a pod, set them to the API server's address"
        )
    return ServiceAccount(
        f"https://{f'[{host}]' if ':' in host else host}:{port}", directory, conditions=conditions, resource=resource
    )


def tls_context(certificates: bytes) -> ssl.SSLContext:
    """Return a context that trusts only these certificates, in PEM. Raises ValueError or ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unlike a default context, never trusts the system's authorities
    context.load_verify_locations(cadata=certificates.decode("ascii"))
    # Go, with which Kubernetes verifies certificates, accepts authorities without a key identifier (Python 3.13 does
    # not by default), and takes an intermediate certificate in the file as trusted.
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context
