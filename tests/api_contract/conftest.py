"""The stand-in API server, in the versions of which ``tests/e2e/apiserver`` runs the same tests with kube-apiserver."""

import contextlib
from collections.abc import AsyncIterator, Iterable

import pytest

from aosp_plugin.framework.apiserver.client import DEFAULT_LIMITS, ApiClient, ApiLimits
from kubelet_standin.apiserver import ApiServer, Throttle
from tests.api_contract.common import client
from tests.static_credentials import StaticCredentials

__all__ = ["client"]

ADMINISTRATOR = "administrator"


class StandIn:
    """The stand-in API server as the tests use it."""

    short = ApiLimits(watch=(3.0, 3.0))

    def __init__(self, server: ApiServer, minor: int) -> None:
        self.minor = minor
        self._server = server
        server.access.add_token(ADMINISTRATOR)

    def client(self, limits: ApiLimits = DEFAULT_LIMITS, token: str = ADMINISTRATOR) -> contextlib.aclosing[ApiClient]:
        """Return a client, which the context closes."""
        return contextlib.aclosing(ApiClient(StaticCredentials(self._server.url, token), limits=limits))

    async def token(self, name: str, rules: Iterable[tuple[str, str]]) -> str:
        """Return the token of a user."""
        self._server.access.add_token(name, f"system:serviceaccount:default:{name}", rules)
        return name

    async def too_old(self) -> str:
        """Return a version before the history."""
        self._server.compact()
        return "1"

    async def throttled(self) -> str:
        """Throttle all requests."""
        self._server.faults.add(Throttle())
        return ADMINISTRATOR

    async def restart(self) -> None:
        """Restart the server."""
        await self._server.restart()


@pytest.fixture(params=[34, 37])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[StandIn]:
    """Return a stand-in API server."""
    async with ApiServer(minor=request.param) as server:
        yield StandIn(server, request.param)
