"""Lists, watches, and the deletion of a collection."""

import asyncio

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import ApiUnavailableError
from tests.api_contract.common import (
    DRIVER,
    PATIENCE,
    SLICES,
    Server,
    a_slice,
    changed,
    delete_collection,
    next_change,
    next_event,
    refused,
    version_of,
    watching,
)


async def test_listed(client: ApiClient) -> None:
    """A list is selected by node and driver; its items have no kind."""
    for name, node in (("listed-1", "a"), ("listed-2", "b"), ("listed-3", "a")):
        await client.create(SLICES, a_slice(name, node=f"listed-{node}"))
    found = await client.list(SLICES, field_selector=f"spec.nodeName=listed-a,spec.driver={DRIVER}")
    assert [item["metadata"]["name"] for item in found] == ["listed-1", "listed-3"]
    assert not any("kind" in item or "apiVersion" in item for item in found)
    versions = [item["metadata"]["resourceVersion"] for item in found]
    now = await version_of(client, SLICES)
    assert not any(changed(now, version) for version in versions)
    found = await client.list(SLICES, field_selector="spec.nodeName=listed-a,spec.driver=other.example.com")
    assert found == []
    found = await client.list(SLICES, field_selector="metadata.name=listed-2")
    assert [item["metadata"]["name"] for item in found] == ["listed-2"]


async def test_watched(client: ApiClient) -> None:
    """A watch has the changes since a list, of the selected objects, in their order."""
    version = await version_of(client, SLICES)
    await client.create(SLICES, a_slice("watched-other", node="watched-other"))
    made = await client.create(SLICES, a_slice("watched", node="watched"))
    path = protocol.object_path(SLICES, "watched")
    async with watching(client, "watched", version) as events:
        event = await next_change(events)
        assert (event.type, event.object) == ("ADDED", made)
        new = await client.update(path, {**made, "spec": {**made["spec"], "devices": []}})
        event = await next_change(events)
        assert (event.type, event.object) == ("MODIFIED", new)
        await client.delete(path)
        event = await next_change(events)
        assert (event.type, event.object["spec"]) == ("DELETED", new["spec"])
        assert changed(new["metadata"]["resourceVersion"], event.resource_version)


async def test_watched_again(client: ApiClient) -> None:
    """A watch resumes after the last event."""
    version = await version_of(client, SLICES)
    for number in range(3):
        await client.create(SLICES, a_slice(f"again-{number}", node="again"))
        async with watching(client, "again", version) as events:
            event = await next_change(events)
            assert event.object["metadata"]["name"] == f"again-{number}"
            version = event.resource_version


async def test_watched_from_the_beginning(client: ApiClient) -> None:
    """A watch without a version begins with what exists."""
    for number in range(2):
        await client.create(SLICES, a_slice(f"beginning-{number}", node="beginning"))
    async with watching(client, "beginning", "") as events:
        names = {(await next_change(events)).object["metadata"]["name"] for _ in range(2)}
        assert names == {"beginning-0", "beginning-1"}


async def test_watch_with_bookmark(server: Server) -> None:
    """A watch has a bookmark before the server ends it, and ends without an error."""
    async with server.client(server.short) as client:
        version = await version_of(client, SLICES)
        await client.create(SLICES, a_slice("bookmark", node="bookmark"))
        async with watching(client, "bookmark", version) as events, asyncio.timeout(PATIENCE):
            begun = await anext(events)
            await client.create(SLICES, a_slice("bookmark-of-another-node"))
            seen = [event async for event in events]
        assert seen, "the watch had no bookmark"
        assert {event.type for event in seen} == {"BOOKMARK"}
        assert changed(begun.resource_version, seen[-1].resource_version)
        assert seen[-1].object["kind"] == "ResourceSlice"
        async with watching(client, "bookmark", seen[-1].resource_version) as events:
            await client.create(SLICES, a_slice("after-bookmark", node="bookmark"))
            assert (await next_change(events)).object["metadata"]["name"] == "after-bookmark"


async def test_watched_too_late(server: Server, client: ApiClient) -> None:
    """A watch from a version that is too old is gone."""
    await client.create(SLICES, a_slice("too-old"))
    events = client.watch(SLICES, resource_version=await server.too_old())
    assert await refused(anext(events)) == (410, "Expired")


async def test_wiped(client: ApiClient) -> None:
    """A kubelet that starts deletes the slices of its node, and watches see it."""
    for number in range(3):
        await client.create(SLICES, a_slice(f"wiped-{number}", node="wiped"))
    kept = await client.create(SLICES, a_slice("kept", node="kept"))
    version = await version_of(client, SLICES)
    async with watching(client, "wiped", version) as events:
        answer = await delete_collection(client, "spec.nodeName=wiped")
        assert answer["kind"] == "ResourceSliceList"
        changes = [await next_change(events) for _ in range(3)]
        assert {(event.type, event.object["metadata"]["name"]) for event in changes} == {
            ("DELETED", f"wiped-{number}") for number in range(3)
        }
    assert await client.get(protocol.object_path(SLICES, "kept")) == kept


async def test_restarted(server: Server, client: ApiClient) -> None:
    """A server that is killed breaks watches; after its start, earlier versions are gone and objects are not."""
    version = await version_of(client, SLICES)
    made = await client.create(SLICES, a_slice("restarted", node="restarted"))
    async with watching(client, "restarted", version) as events:
        assert (await next_change(events)).object == made
        await client.create(SLICES, a_slice("restarted-of-another-node"))
        await server.restart()
        with pytest.raises(ApiUnavailableError):  # noqa: PT012 - after events that were on their way
            while True:
                await next_event(events)
    assert await client.get(protocol.object_path(SLICES, "restarted")) == made
    events = client.watch(SLICES, resource_version=made["metadata"]["resourceVersion"])
    assert await refused(anext(events)) == (410, "Expired")
