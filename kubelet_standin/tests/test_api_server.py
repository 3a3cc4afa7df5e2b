"""The stand-in API server: what its operator does, and what it answers."""

import asyncio
from typing import Any

import aiohttp
import pytest

from kubelet_standin.apiserver import ApiServer, Hang, StatusError, Throttle

NODES = "/api/v1/nodes"
RESOURCE_API = "/apis/resource.k8s.io/v1"
NODE = {"kind": "Node", "apiVersion": "v1"}
CLAIMS = f"{RESOURCE_API}/namespaces/default/resourceclaims"
CLAIM = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "a", "namespace": "b"}}


def node(name: str = "worker", **fields: Any) -> dict[str, Any]:
    return {**NODE, "metadata": {"name": name}, **fields}


async def request(server: ApiServer, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Return status and body of the answer to a request."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, json=body) as response,
    ):
        return response.status, await response.text()


async def test_faults_happen_to_the_requests_they_are_for(api_server: ApiServer) -> None:
    throttled = api_server.faults.add(Throttle(), verb="create", resource="nodes", times=2)
    assert [(await request(api_server, "POST", NODES, node()))[0] for _ in range(3)] == [429, 429, 201]
    await api_server.wait_for(lambda s: s.objects.list(NODES))
    assert (throttled.hits, api_server.count("create", "nodes"), api_server.count("update")) == (2, 3, 0)
    api_server.faults.add(Throttle(), verb="list", resource="pods")
    assert (await request(api_server, "GET", NODES))[0] == 200


async def test_requests_that_hang_are_processed_when_the_fault_is_removed(api_server: ApiServer) -> None:
    hang = api_server.faults.add(Hang())
    waiting = asyncio.create_task(request(api_server, "POST", NODES, node()))
    await api_server.wait_for(lambda _: hang.hits == 1)
    assert api_server.objects.list(NODES) == []
    api_server.faults.clear()
    assert (await waiting)[0] == 201


async def test_objects_are_read_and_refused(api_server: ApiServer) -> None:
    path, objects = f"{NODES}/worker", api_server.objects
    with pytest.raises(StatusError, match="404 NotFound"):
        objects.get(path)
    created = objects.create(NODES, node())
    assert objects.get(path) == created
    created["metadata"]["name"] = "changed outside"
    assert objects.get(path)["metadata"]["name"] == "worker"
    with pytest.raises(KeyError, match="is not the path of a resource"):
        objects.get("/api/v1/nonsense/a")


async def test_the_status_has_requests_of_its_own(api_server: ApiServer) -> None:
    objects, path = api_server.objects, f"{NODES}/worker"
    objects.create(NODES, node(status={"a": 1}))
    assert objects.update(path, node(status={"a": 2}, spec={"b": 1}))["status"] == {"a": 1}
    updated = objects.update(f"{path}/status", node(status={"a": 3}, spec={"b": 2}))
    assert (updated["status"], updated["spec"]) == ({"a": 3}, {"b": 1})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/apis/nonsense/v1/a", None, 404, "404 page not found"),
        ("GET", f"{RESOURCE_API}/resourceclaims/a", None, 404, "404 page not found"),
        ("GET", f"{NODES}?fieldSelector=nonsense", None, 400, "invalid selector"),
        ("GET", f"{NODES}?fieldSelector=nonsense=a", None, 400, "field label not supported: nonsense"),
        ("GET", f"{NODES}?watch=1&resourceVersion=a", None, 400, "Invalid value"),
        ("PATCH", NODES, {}, 405, "MethodNotAllowed"),
        ("POST", NODES, [], 400, "not an object"),
        ("POST", NODES, NODE | {"metadata": []}, 400, "metadata is not an object"),
        ("POST", NODES, NODE, 422, "metadata.name: Required value"),
        ("POST", CLAIMS, CLAIM, 400, "the namespace of the provided object does not match"),
    ],
)
async def test_a_request_that_is_wrong_is_refused(
    api_server: ApiServer, method: str, path: str, body: object, status: int, text: str
) -> None:
    found, answer = await request(api_server, method, path, body)
    assert found == status
    assert text in answer


async def test_a_condition_that_is_not_met_describes_the_state(api_server: ApiServer) -> None:
    api_server.objects.create(NODES, node())
    await request(api_server, "GET", f"{NODES}/other")
    with pytest.raises(TimeoutError) as info:
        await api_server.wait_for(lambda s: s.open_watches, timeout=0.01)
    for text in ("the API server is running", "nodes: worker", "get nodes other: 404"):
        assert text in str(info.value)


async def test_a_server_that_starts_again_has_its_port(api_server: ApiServer) -> None:
    url = api_server.url
    await api_server.stop()
    assert not api_server.running
    await api_server.start()
    assert (api_server.running, api_server.url) == (True, url)
