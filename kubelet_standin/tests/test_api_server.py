"""The stand-in API server: what its operator does, and what it answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from kubelet_standin.apiserver import ApiServer, Hang, Refuse, StatusError, Throttle

NODES = "/api/v1/nodes"
RESOURCE_API = "/apis/resource.k8s.io/v1"
RESOURCE_SLICES = f"{RESOURCE_API}/resourceslices"
CLAIMS = f"{RESOURCE_API}/namespaces/default/resourceclaims"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def node(name: str = "worker", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


async def request(server: ApiServer, method: str, path: str, body: object = None, bearer: str = "") -> tuple[int, str]:
    """Return status and body of the answer to a request."""
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, server.url + path, json=body) as response,
    ):
        return response.status, await response.text()


async def names(server: ApiServer, path: str) -> list[str]:
    """Return the names of the objects of a list."""
    status, text = await request(server, "GET", path)
    assert status == 200, text
    return [item["metadata"]["name"] for item in json.loads(text)["items"]]


async def test_the_example_of_the_documentation_works(server: ApiServer) -> None:
    server.objects.create(NODES, node())
    throttled = server.faults.add(Throttle(), verb="create", resource="configmaps", times=2)
    path = "/api/v1/namespaces/default/configmaps"
    body = {"kind": "ConfigMap", "apiVersion": "v1", **node("a")}
    assert [(await request(server, "POST", path, body))[0] for _ in range(3)] == [429, 429, 201]
    await server.wait_for(lambda s: s.objects.list(path))
    assert (throttled.hits, server.count("create", "configmaps"), server.count("update")) == (2, 3, 0)


async def test_objects_are_found_read_and_refused(server: ApiServer) -> None:
    path = f"{NODES}/worker"
    assert server.objects.find(path) is None
    with pytest.raises(StatusError, match="404 NotFound"):
        server.objects.get(path)
    created = server.objects.create(NODES, node())
    assert server.objects.find(path) == server.objects.get(path) == created
    created["metadata"]["name"] = "changed outside"
    assert server.objects.get(path)["metadata"]["name"] == "worker"
    with pytest.raises(KeyError, match="is not the path of a resource"):
        server.objects.get("/api/v1/nonsense/a")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/readyz", None, 200, "ok"),
        ("GET", "/apis/nonsense/v1/a", None, 404, "404 page not found"),
        ("GET", f"{RESOURCE_API}/resourceclaims/a", None, 404, "404 page not found"),
        ("GET", f"{NODES}?fieldSelector=nonsense", None, 400, "invalid selector"),
        ("GET", f"{NODES}?continue=nonsense", None, 400, "continue key is not valid"),
        ("GET", f"{NODES}?watch=1&resourceVersion=a", None, 400, "Invalid value"),
        ("PATCH", NODES, {}, 405, "MethodNotAllowed"),
        ("PATCH", f"{NODES}/a", {}, 404, "not found"),
        ("POST", NODES, [], 400, "not an object"),
        ("POST", NODES, {"kind": "Node", "apiVersion": "v1", "metadata": []}, 400, "metadata is not an object"),
        ("POST", NODES, {"kind": "Node", "apiVersion": "v1"}, 422, "metadata.name: Required value"),
        (
            "POST",
            CLAIMS,
            {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "a", "namespace": "b"}},
            400,
            "namespace",
        ),
        (
            "POST",
            RESOURCE_SLICES,
            {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", **node("a")},
            422,
            "spec.driver",
        ),
    ],
)
async def test_a_request_that_is_wrong_is_refused(
    server: ApiServer, method: str, path: str, body: object, status: int, text: str
) -> None:
    found, answer = await request(server, method, path, body)
    assert found == status
    assert text in answer


async def test_faults_happen_to_the_requests_they_are_for(server: ApiServer) -> None:
    server.objects.create(NODES, node())
    refused = server.faults.add(Refuse(message="not now"), verb="list", resource="nodes", times=1)
    assert (await request(server, "GET", f"{NODES}/worker"))[0] == 200
    status, text = await request(server, "GET", NODES)
    assert status == 503
    assert "not now" in text
    assert await names(server, NODES) == ["worker"]
    assert refused.hits == 1


async def test_requests_that_hang_are_processed_when_the_fault_is_removed(server: ApiServer) -> None:
    hang = server.faults.add(Hang())
    body = {"kind": "Node", "apiVersion": "v1", **node()}
    waiting = asyncio.create_task(request(server, "POST", NODES, body))
    await server.wait_for(lambda _: hang.hits == 1)
    assert server.objects.list(NODES) == []
    server.faults.clear()
    status, text = await waiting
    assert (status, json.loads(text)["metadata"]["name"]) == (201, "worker")


async def test_a_condition_that_is_not_met_describes_the_state(server: ApiServer) -> None:
    server.objects.create(NODES, node())
    await request(server, "GET", f"{NODES}/other")
    with pytest.raises(TimeoutError) as info:
        await server.wait_for(lambda s: s.open_watches, timeout=0.01)
    for text in ("the API server is running", "nodes: worker", "get nodes other: 404"):
        assert text in str(info.value)


async def test_a_server_is_started_once_and_stopped_as_often_as_one_likes(server: ApiServer) -> None:
    url = server.url
    with pytest.raises(RuntimeError, match="already runs"):
        await server.start()
    await server.stop()
    await server.stop()
    assert not server.running
    await server.start()
    assert (server.running, server.url) == (True, url)
