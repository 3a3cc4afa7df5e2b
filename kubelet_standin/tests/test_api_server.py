"""The stand-in API server itself: what its operator does. ``tests/api_contract`` has what clients see."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from aosp_plugin.framework.apiserver import paths
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import StaticCredentials, in_cluster
from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, ForbiddenError, NotFoundError
from kubelet_standin.apiserver import ApiServer, Hang, Kind, Refuse, Slow, StatusError, Throttle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CLAIMS = paths.resource_claims("default")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def node(name: str = "worker", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


async def request(server: ApiServer, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Return status and body of a request that no client of this project makes."""
    async with aiohttp.ClientSession() as session, session.request(method, server.url + path, json=body) as response:
        return response.status, await response.text()


async def test_the_example_of_the_documentation_works(server: ApiServer) -> None:
    async with ApiClient(StaticCredentials(server.url)) as client:
        server.objects.create(paths.NODES, node())
        throttled = server.faults.add(Throttle(), verb="create", resource="configmaps", times=2)
        path = "/api/v1/namespaces/default/configmaps"
        body = {"kind": "ConfigMap", "apiVersion": "v1", **node("a")}
        results = [await asyncio.gather(client.create(path, body), return_exceptions=True) for _ in range(3)]
        await server.wait_for(lambda s: s.objects.list(path))
        assert [isinstance(result, Exception) for (result,) in results] == [True, True, False]
        assert (throttled.hits, server.count("create", "configmaps"), server.count("update")) == (2, 3, 0)


async def test_objects_of_deleted_owners_are_collected(server: ApiServer) -> None:
    owner = server.objects.create(paths.NODES, node())["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": owner}
    server.objects.create(CLAIMS, node("owned", ownerReferences=[reference]))
    server.objects.create(CLAIMS, node("free"))
    assert server.objects.collect_garbage() == []
    server.objects.delete(paths.object_path(paths.NODES, "worker"))
    server.objects.create(paths.NODES, node())  # another one of the same name
    assert server.objects.collect_garbage() == ["owned"]
    assert [item["metadata"]["name"] for item in server.objects.list(CLAIMS)] == ["free"]


async def test_objects_are_found_read_and_refused(server: ApiServer) -> None:
    path = paths.object_path(paths.NODES, "worker")
    assert server.objects.find(path) is None
    with pytest.raises(StatusError, match="404 NotFound"):
        server.objects.get(path)
    created = server.objects.create(paths.NODES, node())
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
    async with ApiServer(kinds=[kind]) as server, ApiClient(StaticCredentials(server.url)) as client:
        path = "/apis/example.com/v1/namespaces/default/phones"
        server.objects.create(path, {**node("a"), "spec": {"on": True}})
        server.objects.create(path, {**node("b"), "spec": {"on": False}})
        everywhere = "/apis/example.com/v1/phones"
        found = await client.list(everywhere, field_selector="spec.on==true,metadata.namespace=default")
        assert [item["metadata"]["name"] for item in found.items] == ["a"]
        found = await client.list(everywhere, field_selector="spec.on!=true")
        assert [item["metadata"]["name"] for item in found.items] == ["b"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/readyz", None, 200, "ok"),
        ("GET", "/apis/nonsense/v1/a", None, 404, "404 page not found"),
        ("GET", f"{paths.RESOURCE_API}/resourceclaims/a", None, 404, "404 page not found"),
        ("GET", f"{paths.NODES}?fieldSelector=nonsense", None, 400, "invalid selector"),
        ("GET", f"{paths.NODES}?continue=nonsense", None, 400, "continue key is not valid"),
        ("GET", f"{paths.NODES}?watch=1&resourceVersion=a", None, 400, "Invalid value"),
        ("PATCH", paths.NODES, {}, 405, "MethodNotAllowed"),
        ("PATCH", f"{paths.NODES}/a", {}, 404, "not found"),
        ("POST", paths.NODES, [], 400, "not an object"),
        ("POST", paths.NODES, {"kind": "Node", "apiVersion": "v1", "metadata": []}, 400, "metadata is not an object"),
        ("POST", paths.NODES, {"kind": "Node", "apiVersion": "v1"}, 422, "metadata.name: Required value"),
        (
            "POST",
            CLAIMS,
            {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "a", "namespace": "b"}},
            400,
            "namespace",
        ),
        (
            "POST",
            paths.RESOURCE_SLICES,
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
    async with aiohttp.ClientSession() as session, session.post(server.url + paths.NODES, data=b"{") as response:
        assert response.status == 400
        assert json.loads(await response.text())["reason"] == "BadRequest"


async def test_faults_happen_to_the_requests_they_are_for(server: ApiServer) -> None:
    server.objects.create(paths.NODES, node())
    refused = server.faults.add(Refuse(message="not now"), verb="list", resource="nodes", times=1)
    async with ApiClient(StaticCredentials(server.url)) as client:
        await client.get(paths.object_path(paths.NODES, "worker"))
        with pytest.raises(ApiUnavailableError, match="not now"):
            await client.list(paths.NODES)
        await client.list(paths.NODES)
        assert refused.hits == 1
        slow = server.faults.add(Slow(0.01))
        await client.list(paths.NODES)
        slow.remove()
        await client.list(paths.NODES)
        assert slow.hits == 1


async def test_requests_that_hang_are_processed_when_the_fault_is_removed(server: ApiServer) -> None:
    hang = server.faults.add(Hang())
    async with ApiClient(StaticCredentials(server.url)) as client:
        waiting = asyncio.create_task(client.create(paths.NODES, {"kind": "Node", "apiVersion": "v1", **node()}))
        await server.wait_for(lambda _: hang.hits == 1)
        assert server.objects.list(paths.NODES) == []
        server.faults.clear()
        assert (await waiting)["metadata"]["name"] == "worker"


async def test_rules_are_given_and_taken(server: ApiServer) -> None:
    server.access.add_token("a")
    server.access.allow([("get", "nodes"), ("*", "pods")])
    async with ApiClient(StaticCredentials(server.url, "a")) as client:
        with pytest.raises(NotFoundError):
            await client.get(paths.object_path(paths.NODES, "worker"))
        with pytest.raises(ForbiddenError):
            await client.list(paths.NODES)
        await client.list("/api/v1/pods")
        server.access.forbid("list")
        with pytest.raises(ForbiddenError):
            await client.list("/api/v1/pods")
        server.access.permit("list")
        await client.list("/api/v1/pods")
    with pytest.raises(KeyError):
        server.access.expire("b")


async def test_a_condition_that_is_not_met_describes_the_state(server: ApiServer) -> None:
    server.objects.create(paths.NODES, node())
    await request(server, "GET", f"{paths.NODES}/other")
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
    async with ApiClient(StaticCredentials(server.url)) as client:
        async with contextlib.aclosing(client.watch(paths.NODES, resource_version="1")) as events:
            pending = asyncio.ensure_future(anext(events))
            await server.wait_for(lambda s: s.open_watches == 1)
            server.drop_connections()
            with pytest.raises(ApiUnavailableError):
                await pending
        await server.wait_for(lambda s: s.open_watches == 0)


async def test_a_server_with_an_ipv6_address_is_found_by_the_environment(tmp_path: Path) -> None:
    async with ApiServer(tls=True, host="::1") as server:
        server.write_service_account(str(tmp_path))
        async with ApiClient(in_cluster(str(tmp_path), server.environment)) as client:
            assert (await client.list(paths.NODES)).items == []
        assert server.url.startswith("https://[::1]:")
