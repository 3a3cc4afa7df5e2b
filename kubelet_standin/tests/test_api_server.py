"""The stand-in API server: what its operator does, and what it answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from kubelet_standin.apiserver import ApiServer, Hang, Kind, Refuse, Slow, StatusError, Throttle

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


async def test_objects_of_deleted_owners_are_collected(server: ApiServer) -> None:
    owner = server.objects.create(NODES, node())["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": owner}
    server.objects.create(CLAIMS, node("owned", ownerReferences=[reference]))
    server.objects.create(CLAIMS, node("free"))
    assert server.objects.collect_garbage() == []
    server.objects.delete(f"{NODES}/worker")
    server.objects.create(NODES, node())  # another one of the same name
    assert server.objects.collect_garbage() == ["owned"]
    assert [item["metadata"]["name"] for item in server.objects.list(CLAIMS)] == ["free"]


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


async def test_a_generated_name_has_its_prefix(server: ApiServer) -> None:
    created = server.objects.create(CLAIMS, {"metadata": {"generateName": "phone-"}})
    assert created["metadata"]["name"].startswith("phone-")
    assert len(created["metadata"]["name"]) == len("phone-") + 5


async def test_other_kinds_can_be_added() -> None:
    kind = Kind("example.com", "v1", "phones", "Phone", namespaced=True, fields=("spec.on",))
    async with ApiServer(kinds=[kind]) as server:
        path = "/apis/example.com/v1/namespaces/default/phones"
        server.objects.create(path, {**node("a"), "spec": {"on": True}})
        server.objects.create(path, {**node("b"), "spec": {"on": False}})
        everywhere = "/apis/example.com/v1/phones"
        assert await names(server, f"{everywhere}?fieldSelector=spec.on==true,metadata.namespace=default") == ["a"]
        assert await names(server, f"{everywhere}?fieldSelector=spec.on!=true") == ["b"]


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


async def test_a_body_that_is_not_json_is_refused(server: ApiServer) -> None:
    async with aiohttp.ClientSession() as session, session.post(server.url + NODES, data=b"{") as response:
        assert response.status == 400
        assert json.loads(await response.text())["reason"] == "BadRequest"


async def test_faults_happen_to_the_requests_they_are_for(server: ApiServer) -> None:
    server.objects.create(NODES, node())
    refused = server.faults.add(Refuse(message="not now"), verb="list", resource="nodes", times=1)
    assert (await request(server, "GET", f"{NODES}/worker"))[0] == 200
    status, text = await request(server, "GET", NODES)
    assert status == 503
    assert "not now" in text
    assert await names(server, NODES) == ["worker"]
    assert refused.hits == 1
    slow = server.faults.add(Slow(0.01))
    assert await names(server, NODES) == ["worker"]
    slow.remove()
    assert await names(server, NODES) == ["worker"]
    assert slow.hits == 1


async def test_requests_that_hang_are_processed_when_the_fault_is_removed(server: ApiServer) -> None:
    hang = server.faults.add(Hang())
    body = {"kind": "Node", "apiVersion": "v1", **node()}
    waiting = asyncio.create_task(request(server, "POST", NODES, body))
    await server.wait_for(lambda _: hang.hits == 1)
    assert server.objects.list(NODES) == []
    server.faults.clear()
    status, text = await waiting
    assert (status, json.loads(text)["metadata"]["name"]) == (201, "worker")


async def test_rules_are_given_and_taken(server: ApiServer) -> None:
    server.access.add_token("a")
    server.access.allow([("get", "nodes"), ("*", "pods")])

    async def status(path: str, bearer: str = "a") -> int:
        return (await request(server, "GET", path, bearer=bearer))[0]

    assert await status(f"{NODES}/worker") == 404
    assert await status(NODES) == 403
    assert await status("/api/v1/pods") == 200
    assert await status("/api/v1/pods", bearer="b") == 401
    server.access.forbid("list")
    assert await status("/api/v1/pods") == 403
    server.access.permit("list")
    assert await status("/api/v1/pods") == 200
    with pytest.raises(KeyError):
        server.access.expire("b")


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


async def test_connections_that_are_dropped_end_watches(server: ApiServer) -> None:
    pending = asyncio.create_task(request(server, "GET", f"{NODES}?watch=1&resourceVersion=1"))
    await server.wait_for(lambda s: s.open_watches == 1)
    server.drop_connections()
    with pytest.raises(aiohttp.ClientError):
        await pending
    await server.wait_for(lambda s: s.open_watches == 0)
