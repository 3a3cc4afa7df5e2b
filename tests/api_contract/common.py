"""What the tests of the contract have in common."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from typing import Any, Final, Protocol

import msgspec
import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError, Request, WatchEvent

SLICES: Final = protocol.RESOURCE_SLICES
DRIVER: Final = "phone.example.com"
PATIENCE: Final = 60.0
RIGHTS: Final = (
    ("get", "nodes"),
    *((verb, "resourceslices") for verb in ("get", "list", "watch", "create", "update", "delete")),
)
"""What a driver may do that publishes slices."""
TAINT: Final = {"key": "example.com/unhealthy", "effect": "NoSchedule"}


class Server(Protocol):
    """An API server, with what only its operator can do."""

    minor: int
    """The version is 1.``minor``."""
    short: ApiLimits
    """With watches that the server ends after seconds, late enough for a bookmark before the end."""

    def client(self, limits: ApiLimits = ..., token: str = ...) -> contextlib.aclosing[ApiClient]:
        """Return a client, which the context closes: of the administrator, or of the owner of a token."""

    async def token(self, name: str, rules: Iterable[tuple[str, str]]) -> str:
        """Return a token of a service account of the namespace default, which may do what the rules allow."""

    async def too_old(self) -> str:
        """Return a resourceVersion from which a watch of ResourceSlices is no longer possible."""

    async def throttled(self) -> str:
        """Return a token whose requests the server throttles."""

    async def restart(self) -> None:
        """Kill the server, and start it again with its data."""


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ApiClient]:
    """Return the administrator's client."""
    async with server.client() as client:
        yield client


def a_slice(slice_name: str, *, node: str = "", devices: int = 1, **device: Any) -> dict[str, Any]:
    """Return a ResourceSlice; each check has names of its own."""
    node = node or f"node-of-{slice_name}"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": f"{node}/{slice_name}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"phone{number}"} | device for number in range(devices)],
        },
    }


async def refused(request: Awaitable[object]) -> tuple[int, str]:
    """Return status and reason of a request that must fail."""
    try:
        result = await request
    except ApiError as error:
        return error.status, error.reason
    raise AssertionError(f"the request has not failed: {result}")


async def next_event(events: AsyncIterator[WatchEvent]) -> WatchEvent:
    """Return the next event."""
    async with asyncio.timeout(PATIENCE):
        return await anext(events)


async def next_change(events: AsyncIterator[WatchEvent]) -> WatchEvent:
    """Return the next event that is no bookmark."""
    while (event := await next_event(events)).type == "BOOKMARK":
        pass
    return event


def watching(client: ApiClient, node: str, version: str) -> contextlib.aclosing[AsyncGenerator[WatchEvent, None]]:
    """Watch the ResourceSlices of a node."""
    return contextlib.aclosing(
        client.watch(SLICES, field_selector=f"spec.nodeName={node},spec.driver={DRIVER}", resource_version=version)
    )


async def delete_collection(client: ApiClient, selector: str) -> dict[str, Any]:
    """Delete ResourceSlices as a kubelet does when it starts, and return the answer."""
    body = await client.send(Request("deletecollection", SLICES), {"fieldSelector": selector})
    return msgspec.json.decode(body, type=dict[str, Any])


async def version_of(client: ApiClient, collection: str) -> str:
    """Return the resourceVersion of a collection, from which a watch has all later changes."""
    body = await client.send(Request("list", collection))
    version: str = msgspec.json.decode(body)["metadata"]["resourceVersion"]
    return version


def changed(version: str, later: str) -> bool:
    """Return whether one resourceVersion is later than another one."""
    return int(later) > int(version)
