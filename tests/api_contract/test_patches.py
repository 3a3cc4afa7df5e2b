"""Patches, as the plugin uses them on Nodes and Events."""

from typing import Any, Final

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from tests.api_contract.common import changed, refused

STARTUP: Final = {"key": "example.com/starting", "effect": "NoSchedule"}
OTHER: Final = {"key": "example.com/other", "value": "a", "effect": "NoExecute"}
EVENTS: Final = protocol.events("default")


async def a_node(client: ApiClient, name: str) -> tuple[str, list[dict[str, Any]]]:
    """Create a Node; return its path and taints, of which the server may have added some."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [STARTUP, OTHER]}}
    node = await client.create(protocol.NODES, body)
    return protocol.object_path(protocol.NODES, name), node["spec"]["taints"]


def removal(taints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the patch that removes the startup taint if it still has its place."""
    path = f"/spec/taints/{taints.index(STARTUP)}"
    return [{"op": "test", "path": path, "value": STARTUP}, {"op": "remove", "path": path}]


async def test_json_patch(client: ApiClient) -> None:
    """A JSON patch removes one taint of a Node, and the answer is the Node."""
    path, taints = await a_node(client, "patched")
    before = await client.get(path)
    answer = await client.patch(path, removal(taints))
    assert answer["spec"]["taints"] == [taint for taint in taints if taint != STARTUP]
    assert changed(before["metadata"]["resourceVersion"], answer["metadata"]["resourceVersion"])
    assert await client.get(path) == answer


async def test_json_patch_that_fails(client: ApiClient) -> None:
    """A JSON patch whose test fails changes nothing."""
    path, taints = await a_node(client, "not-patched")
    patch = removal(taints)
    node = await client.patch(path, patch)
    assert await refused(client.patch(path, patch)) == (422, "Invalid"), "another taint has this place now"
    last = len(node["spec"]["taints"])
    missing = [{"op": "test", "path": f"/spec/taints/{last}", "value": STARTUP}]
    assert await refused(client.patch(path, missing)) == (422, "Invalid"), "no taint has this place"
    other = [{"op": "test", "path": "/metadata/uid", "value": "another"}, {"op": "remove", "path": "/spec/taints"}]
    assert await refused(client.patch(path, other)) == (422, "Invalid"), "it is another Node"
    assert (await client.get(path))["spec"]["taints"] == node["spec"]["taints"]


async def test_patch_of_nothing(client: ApiClient) -> None:
    """A patch of an object that does not exist is not found."""
    path = protocol.object_path(protocol.NODES, "no-node")
    assert await refused(client.patch(path, {"spec": {"unschedulable": True}})) == (404, "NotFound")
    assert await refused(client.patch(protocol.object_path(EVENTS, "none"), {"count": 2})) == (404, "NotFound")


async def test_event(client: ApiClient) -> None:
    """An Event of a Node is in the namespace default; a merge patch changes its count, message and last time."""
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a-node.17", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "a-node", "uid": "a-node"},
        "reason": "DevicesLost",
        "message": "first",
        "type": "Warning",
        "count": 1,
        "source": {"component": "aosp-device-plugin", "host": "a-node"},
        "reportingComponent": "aosp-device-plugin",
        "reportingInstance": "a-node",
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
    }
    made = await client.create(EVENTS, body)
    assert {name: value for name, value in body.items() if made[name] != value} == {"metadata": body["metadata"]}
    patch = {"count": 2, "message": "second", "lastTimestamp": "2026-01-02T03:05:00Z"}
    answer = await client.patch(protocol.object_path(EVENTS, "a-node.17"), patch)
    assert {name: answer[name] for name in patch} == patch
    assert answer["firstTimestamp"] == body["firstTimestamp"]
    found = await client.list(EVENTS, field_selector="involvedObject.kind=Node,involvedObject.name=a-node")
    assert [item["message"] for item in found] == ["second"]
