"""The stand-in API server: Kubernetes objects on a real TCP socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Final, NamedTuple

from aiohttp import web

from kubelet_standin.apiserver import certificates
from kubelet_standin.apiserver.access import Access, Received
from kubelet_standin.apiserver.faults import Faults
from kubelet_standin.apiserver.handler import Handler
from kubelet_standin.apiserver.kinds import KINDS
from kubelet_standin.apiserver.objects import Objects
from kubelet_standin.apiserver.store import Store
from kubelet_standin.apiserver.watches import Watch
from kubelet_standin.observable import Observable

NEWEST: Final = 37
"""The newest minor version whose behaviour is known."""
TAINTS_SINCE: Final = 36
"""The first minor version with the feature gate DRADeviceTaints on by default."""


class RequestRecord(NamedTuple):
    """A request that was answered, or whose connection ended."""

    verb: str
    resource: str
    name: str
    """Empty for a collection."""
    code: int
    """HTTP status; 0 without an answer."""


class ApiServer(Observable[web.AppRunner]):
    """A stand-in API server: an async context manager that belongs to one event loop."""

    def __init__(
        self,
        *,
        minor: int = NEWEST,
        drop_fields: Collection[str] | None = None,
        tls: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        """Prepare a server like kube-apiserver 1.``minor``.

        - ``drop_fields``: fields of the spec and of the devices of ResourceSlices that the server drops, as if their
          feature gates were off; None for those of the version, which is ``taints`` before 1.36.
        - ``tls``: serve HTTPS with a certificate of an authority of its own, which requires openssl.
        """
        super().__init__("API server")
        self.access = Access()
        self.faults = Faults(self._notify)
        self.log: list[RequestRecord] = []
        """All requests, the oldest one first; across restarts."""
        self._tls = tls
        self._host = host
        self._port = 0
        self._watches: set[Watch] = set()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._certificates: certificates.Certificates | None = None
        if drop_fields is None:
            drop_fields = () if minor >= TAINTS_SINCE else ("taints",)
        self.store = Store(drop_fields=drop_fields, minor=minor, changed=self._notify)
        self.objects = Objects(self.store)
        """The administrator's requests, without HTTP."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server, and remove its files."""
        await super().__aexit__(kind, error, trace)
        if self._directory is not None:
            self._directory.cleanup()

    async def _start(self) -> web.AppRunner:
        """Listen; after the first start, at the same port. As a kube-apiserver's cache, the history is lost."""
        self.store.compact()
        context = None
        if self._tls:
            if self._certificates is None:
                await self.replace_certificates()
            assert self._certificates is not None  # noqa: S101 - for mypy
            context = self._certificates.context()
        application = web.Application(client_max_size=4 << 20)
        application.router.add_route("*", "/{path:.*}", Handler(self).handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port, ssl_context=context).start()
        self._port = runner.addresses[0][1]
        return runner

    async def _stop(self, run: web.AppRunner) -> None:
        self.drop_connections(run)
        await run.cleanup()

    async def replace_certificates(self) -> None:
        """Create another authority and certificate, which the next start uses."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="apiserver-")
        self._certificates = await asyncio.to_thread(certificates.create, self._directory.name)

    @property
    def url(self) -> str:
        """The URL without a path; after the first start."""
        return f"http{'s' if self._tls else ''}://{self._host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the kubelet sets in containers; after the first start."""
        return {"KUBERNETES_SERVICE_HOST": self._host, "KUBERNETES_SERVICE_PORT": str(self._port)}

    def write_service_account(self, directory: str, token: str = "driver-token") -> None:  # noqa: S107 - of tests
        """Write ``token`` and ``ca.crt`` to a directory, as the kubelet does, and accept the token.

        Requires TLS, and a first start. The files are replaced atomically.
        """
        if self._certificates is None:
            raise RuntimeError("a service account requires an API server with tls=True that was started")
        with open(self._certificates.authority, encoding="ascii") as file:
            authority = file.read()
        for name, content in (("token", token), ("ca.crt", authority)):
            path = os.path.join(directory, name)
            with open(f"{path}.new", "w", encoding="ascii") as file:
                file.write(content)
            os.replace(f"{path}.new", path)
        self.access.add_token(token)

    def compact(self) -> None:
        """Forget the history: a watch from an older revision gets 410 as its first event."""
        self.store.compact()
        self._notify()

    @property
    def open_watches(self) -> int:
        """The number of watches that are open."""
        return len(self._watches)

    def end_watches(self) -> None:
        """End all watches as at their time limit: without an error."""
        for watch in self._watches:
            watch.ended = True
        self._notify()

    def drop_connections(self, runner: web.AppRunner | None = None) -> None:
        """Break all connections, those of watches too."""
        runner = runner or self._run
        if runner is not None and runner.server is not None:
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    def count(self, verb: str = "*", resource: str = "*") -> int:
        """Return the number of requests with a verb and a plural name; ``*`` stands for any."""
        return sum(verb in {"*", each.verb} and resource in {"*", each.resource} for each in self.log)

    def describe(self) -> str:
        """Return a description of the state in a few lines, for failed tests."""
        state = "running" if self.running else "stopped"
        lines = [f"the API server is {state}, at revision {self.store.revision}, with {self.open_watches} watches"]
        for kind in KINDS:
            names = [item["metadata"]["name"] for item in self.store.list(kind, lambda _: True)]
            if names:
                lines.append(f"  {kind.plural}: {', '.join(names)}")
        lines += [f"  {record.verb} {record.resource} {record.name}: {record.code}" for record in self.log[-10:]]
        return "\n".join(lines)

    @contextlib.contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Count an open watch. For the handler."""
        self._watches.add(watch)
        self._notify()
        try:
            yield
        finally:
            self._watches.discard(watch)
            self._notify()

    def record(self, request: Received, code: int) -> None:
        """Count a request. For the handler."""
        self.log.append(RequestRecord(request.verb, request.resource, request.location.name, code))
        self._notify()
