"""Objects that are created, updated and deleted, and who may do it."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError
from tests.api_contract.common import (
    PATIENCE,
    SLICES,
    TAINT,
    Checks,
    a_slice,
    changed,
    refused,
)

if TYPE_CHECKING:
    from tests.api_contract.common import Server

check = Checks()


@check("An object that is created gets metadata, and is the answer.")
async def created(server: Server) -> None:
    async with server.client() as client:
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


@check("An object that exists cannot be created.")
async def created_twice(server: Server) -> None:
    async with server.client() as client:
        await client.create(SLICES, a_slice("created-twice"))
        assert await refused(client.create(SLICES, a_slice("created-twice"))) == (409, "AlreadyExists")


@check("An update changes resourceVersion and generation, one without a change neither.")
async def updated(server: Server) -> None:
    async with server.client() as client:
        old = await client.create(SLICES, a_slice("updated"))
        path = protocol.object_path(SLICES, "updated")
        same = await client.update(path, old)
        assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]
        new = await client.update(path, {**old, "spec": {**old["spec"], "devices": []}})
        assert changed(old["metadata"]["resourceVersion"], new["metadata"]["resourceVersion"])
        assert new["metadata"]["generation"] == 2
        assert new["metadata"]["uid"] == old["metadata"]["uid"]
        assert new["metadata"]["creationTimestamp"] == old["metadata"]["creationTimestamp"]


@check("An update of another version is a conflict; one without a resourceVersion is not.")
async def updated_too_late(server: Server) -> None:
    async with server.client() as client:
        old = await client.create(SLICES, a_slice("too-late"))
        path = protocol.object_path(SLICES, "too-late")
        await client.update(path, {**old, "spec": {**old["spec"], "devices": []}})
        assert await refused(client.update(path, old)) == (409, "Conflict")
        del old["metadata"]["resourceVersion"]
        await client.update(path, old)


@check("An update of an object with another UID is a conflict.")
async def updated_other(server: Server) -> None:
    async with server.client() as client:
        old = await client.create(SLICES, a_slice("other-uid"))
        path = protocol.object_path(SLICES, "other-uid")
        old["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        assert await refused(client.update(path, old)) == (409, "Conflict")


@check("An update does not create an object.")
async def updated_missing(server: Server) -> None:
    async with server.client() as client:
        path = protocol.object_path(SLICES, "missing")
        assert await refused(client.update(path, a_slice("missing"))) == (404, "NotFound")


@check("A deletion with preconditions deletes no other object.")
async def deleted(server: Server) -> None:
    async with server.client() as client:
        metadata = (await client.create(SLICES, a_slice("deleted")))["metadata"]
        path = protocol.object_path(SLICES, "deleted")
        other = "00000000-0000-0000-0000-000000000000"
        assert await refused(client.delete(path, uid=other)) == (409, "Conflict")
        assert await refused(client.delete(path, resource_version="1")) == (409, "Conflict")
        await client.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
        assert await refused(client.delete(path)) == (404, "NotFound")
        assert await refused(client.get(path)) == (404, "NotFound")


@check("A token that is not valid is refused.")
async def unauthorized(server: Server) -> None:
    await server.token("known", [])
    async with server.client(token="invalid") as client:  # noqa: S106 - not a password
        assert await refused(client.list(SLICES)) == (401, "Unauthorized")


@check("Without a rule, the answer names verb and resource; with it, the request is served.")
async def forbidden(server: Server) -> None:
    token = await server.token("reader", [("get", "nodes"), ("list", "resourceslices")])
    async with server.client(token=token) as client:
        assert await client.list(SLICES, field_selector="metadata.name=none") == []
        assert await refused(client.get(protocol.object_path(protocol.NODES, "none"))) == (404, "NotFound")
        text = 'cannot create resource "resourceslices" in API group "resource.k8s.io" at the cluster scope'
        with pytest.raises(ApiError, match=re.escape(text)):
            await client.create(SLICES, a_slice("forbidden"))
        claims = protocol.object_path(protocol.resource_claims("default"), "none")
        assert await refused(client.get(claims)) == (403, "Forbidden")


@check("A dry run validates and drops fields as a creation does, and stores nothing.")
async def simulated(server: Server) -> None:
    async with server.client() as client:
        answer = await client.create(SLICES, a_slice("simulated", taints=[TAINT]), dry_run=True)
        assert ("taints" in answer["spec"]["devices"][0]) is (server.minor >= 36)
        assert await refused(client.create(SLICES, a_slice("simulated", name="Upper"), dry_run=True)) == (
            422,
            "Invalid",
        )
        assert await refused(client.get(protocol.object_path(SLICES, "simulated"))) == (404, "NotFound")
        await client.create(SLICES, a_slice("simulated"))
        assert await refused(client.create(SLICES, a_slice("simulated"), dry_run=True)) == (409, "AlreadyExists")


@check("A throttled request gets 429 and a pause.")
async def throttled(server: Server) -> None:
    async with server.client(ApiLimits(request=1.0), await server.throttled()) as client, asyncio.timeout(PATIENCE):
        refusals: list[ApiError] = []
        while not refusals:  # a server needs some time for new rules
            results = await asyncio.gather(*(client.list(SLICES) for _ in range(3)), return_exceptions=True)
            refusals = [result for result in results if isinstance(result, ApiError) and result.status == 429]
        assert refusals[0].retry_after == 1.0
