"""Objects that are created, updated and deleted, and who may do it."""

import asyncio
import re

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError
from tests.api_contract.common import PATIENCE, SLICES, TAINT, Server, a_slice, changed, refused


async def test_created(client: ApiClient) -> None:
    """An object that is created gets metadata, and is the answer."""
    body = a_slice("created")
    answer = await client.create(SLICES, body)
    assert answer["spec"] == body["spec"]
    assert (answer["kind"], answer["apiVersion"]) == ("ResourceSlice", "resource.k8s.io/v1")
    metadata = answer["metadata"]
    assert metadata["generation"] == 1
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 1
    assert metadata["creationTimestamp"].endswith("Z")
    assert await client.get(protocol.object_path(SLICES, "created")) == answer


async def test_created_twice(client: ApiClient) -> None:
    """An object that exists cannot be created."""
    await client.create(SLICES, a_slice("created-twice"))
    assert await refused(client.create(SLICES, a_slice("created-twice"))) == (409, "AlreadyExists")


async def test_updated(client: ApiClient) -> None:
    """An update changes resourceVersion and generation, one without a change neither."""
    old = await client.create(SLICES, a_slice("updated"))
    path = protocol.object_path(SLICES, "updated")
    same = await client.update(path, old)
    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]
    new = await client.update(path, {**old, "spec": {**old["spec"], "devices": []}})
    assert changed(old["metadata"]["resourceVersion"], new["metadata"]["resourceVersion"])
    assert new["metadata"]["generation"] == 2
    assert new["metadata"]["uid"] == old["metadata"]["uid"]
    assert new["metadata"]["creationTimestamp"] == old["metadata"]["creationTimestamp"]


async def test_updated_too_late(client: ApiClient) -> None:
    """An update of another version is a conflict; one without a resourceVersion is not."""
    old = await client.create(SLICES, a_slice("too-late"))
    path = protocol.object_path(SLICES, "too-late")
    await client.update(path, {**old, "spec": {**old["spec"], "devices": []}})
    assert await refused(client.update(path, old)) == (409, "Conflict")
    del old["metadata"]["resourceVersion"]
    await client.update(path, old)


async def test_updated_other(client: ApiClient) -> None:
    """An update of an object with another UID is a conflict."""
    old = await client.create(SLICES, a_slice("other-uid"))
    path = protocol.object_path(SLICES, "other-uid")
    old["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert await refused(client.update(path, old)) == (409, "Conflict")


async def test_updated_missing(client: ApiClient) -> None:
    """An update does not create an object."""
    path = protocol.object_path(SLICES, "missing")
    assert await refused(client.update(path, a_slice("missing"))) == (404, "NotFound")


async def test_deleted(client: ApiClient) -> None:
    """A deletion with preconditions deletes no other object."""
    metadata = (await client.create(SLICES, a_slice("deleted")))["metadata"]
    path = protocol.object_path(SLICES, "deleted")
    other = "00000000-0000-0000-0000-000000000000"
    assert await refused(client.delete(path, uid=other)) == (409, "Conflict")
    assert await refused(client.delete(path, resource_version="1")) == (409, "Conflict")
    await client.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    assert await refused(client.delete(path)) == (404, "NotFound")
    assert await refused(client.get(path)) == (404, "NotFound")


async def test_unauthorized(server: Server) -> None:
    """A token that is not valid is refused."""
    await server.token("known", [])
    async with server.client(token="invalid") as client:  # noqa: S106 - not a password
        assert await refused(client.list(SLICES)) == (401, "Unauthorized")


async def test_forbidden(server: Server) -> None:
    """Without a rule, the answer names verb and resource; with it, the request is served."""
    token = await server.token("reader", [("get", "nodes"), ("list", "resourceslices")])
    async with server.client(token=token) as client:
        assert await client.list(SLICES, field_selector="metadata.name=none") == []
        assert await refused(client.get(protocol.object_path(protocol.NODES, "none"))) == (404, "NotFound")
        text = 'cannot create resource "resourceslices" in API group "resource.k8s.io" at the cluster scope'
        with pytest.raises(ApiError, match=re.escape(text)):
            await client.create(SLICES, a_slice("forbidden"))
        claims = protocol.object_path(protocol.resource_claims("default"), "none")
        assert await refused(client.get(claims)) == (403, "Forbidden")


async def test_simulated(server: Server, client: ApiClient) -> None:
    """A dry run validates and drops fields as a creation does, and stores nothing."""
    answer = await client.create(SLICES, a_slice("simulated", taints=[TAINT]), dry_run=True)
    assert ("taints" in answer["spec"]["devices"][0]) is (server.minor >= 36)
    assert await refused(client.create(SLICES, a_slice("simulated", name="Upper"), dry_run=True)) == (
        422,
        "Invalid",
    )
    assert await refused(client.get(protocol.object_path(SLICES, "simulated"))) == (404, "NotFound")
    await client.create(SLICES, a_slice("simulated"))
    assert await refused(client.create(SLICES, a_slice("simulated"), dry_run=True)) == (409, "AlreadyExists")


async def test_throttled(server: Server) -> None:
    """A throttled request gets 429 and a pause."""
    async with server.client(ApiLimits(request=1.0), await server.throttled()) as client, asyncio.timeout(PATIENCE):
        refusals: list[ApiError] = []
        while not refusals:  # a server needs some time for new rules
            results = await asyncio.gather(*(client.list(SLICES) for _ in range(3)), return_exceptions=True)
            refusals = [result for result in results if isinstance(result, ApiError) and result.status == 429]
        assert refusals[0].retry_after == 1.0
