"""What the server checks and changes of a ResourceSlice."""

from typing import Any

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from tests.api_contract.common import SLICES, TAINT, Server, a_slice, refused


async def test_fixed_fields(client: ApiClient) -> None:
    """Driver, pool name and node name of a slice never change."""
    old = await client.create(SLICES, a_slice("fixed"))
    path = protocol.object_path(SLICES, "fixed")
    for spec in (
        {**old["spec"], "driver": "other.example.com"},
        {**old["spec"], "nodeName": "other"},
        {**old["spec"], "pool": {**old["spec"]["pool"], "name": "other"}},
    ):
        assert await refused(client.update(path, {**old, "spec": spec})) == (422, "Invalid")
    await client.update(path, {**old, "spec": {**old["spec"], "pool": {**old["spec"]["pool"], "generation": 2}}})


async def test_limits(server: Server, client: ApiClient) -> None:
    """A slice has at most 128 devices, with taints 64 from 1.35."""
    await client.create(SLICES, a_slice("limit-128", devices=128))
    assert await refused(client.create(SLICES, a_slice("limit-129", devices=129))) == (422, "Invalid")
    await client.create(SLICES, a_slice("limit-64", devices=64, taints=[TAINT]))
    many = client.create(SLICES, a_slice("limit-65", devices=65, taints=[TAINT]))
    if server.minor <= 35:
        await many  # the gate for taints is off: they are dropped before the validation
    else:
        assert await refused(many) == (422, "Invalid")


async def test_invalid(server: Server, client: ApiClient) -> None:
    """The server refuses names, attributes and taints that are invalid."""
    devices: dict[str, dict[str, Any]] = {
        "underscore": {"name": "aosp_binder7"},
        "upper": {"name": "Phone"},
        "long": {"name": "p" * 64},
        "empty": {"name": ""},
        "no-value": {"attributes": {"a": {}}},
        "two-values": {"attributes": {"a": {"int": 1, "bool": True}}},
        "long-value": {"attributes": {"a": {"string": "x" * 65}}},
        "version": {"attributes": {"a": {"version": "6.1"}}},
        "attribute": {"attributes": {"a-b": {"int": 1}}},
        "long-attribute": {"attributes": {"a" * 33: {"int": 1}}},
        "many": {"attributes": {f"a{number}": {"int": number} for number in range(33)}},
        "domain": {"attributes": {"under_score.example.com/a": {"int": 1}}},
    }
    if server.minor >= 36:
        devices["effect"] = {"taints": [{"key": "a", "effect": "Never"}]}
        devices["key"] = {"taints": [{"key": "a b", "effect": "None"}]}
    for name, value in devices.items():
        found = await refused(client.create(SLICES, a_slice(f"invalid-{name}", **value)))
        assert found == (422, "Invalid"), (name, found)
    duplicate = a_slice("invalid-duplicate", devices=2)
    duplicate["spec"]["devices"][1]["name"] = "phone0"
    assert await refused(client.create(SLICES, duplicate)) == (422, "Invalid")
    specs: dict[str, dict[str, Any]] = {
        "no-driver": {"driver": ""},
        "no-node": {"nodeName": None},
        "two-scopes": {"allNodes": True},
        "pool": {"pool": {"name": "a_b", "generation": 1, "resourceSliceCount": 1}},
        "no-count": {"pool": {"name": "a", "generation": 1, "resourceSliceCount": 0}},
    }
    for name, change in specs.items():
        body = a_slice(f"invalid-{name}")
        found = await refused(client.create(SLICES, {**body, "spec": {**body["spec"], **change}}))
        assert found == (422, "Invalid"), (name, found)
    assert await refused(client.create(SLICES, a_slice("Under_score"))) == (422, "Invalid")


async def test_accepted(client: ApiClient) -> None:
    """The server stores attributes of all types as they are."""
    attributes = {
        "id": {"string": "aosp_binder7"},
        "number": {"int": 7},
        "shared": {"bool": False},
        "version": {"version": "6.1.0-56+deb12u1"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }
    answer = await client.create(SLICES, a_slice("attributes", attributes=attributes))
    assert answer["spec"]["devices"][0]["attributes"] == attributes


async def test_taints(server: Server, client: ApiClient) -> None:
    """Taints are dropped without an error where their gate is off; else, they get a time."""
    answer = await client.create(SLICES, a_slice("taints", taints=[TAINT]))
    (device,) = answer["spec"]["devices"]
    if server.minor <= 35:
        assert "taints" not in device
    else:
        (taint,) = device["taints"]
        assert {**TAINT, "timeAdded": taint["timeAdded"]} == taint


async def test_dropped_again(server: Server, client: ApiClient) -> None:
    """An update with fields that the server drops is no change of the spec."""
    old = await client.create(SLICES, a_slice("dropped"))
    spec = {**old["spec"], "devices": [{"name": "phone0", "taints": [TAINT]}]}
    new = await client.update(protocol.object_path(SLICES, "dropped"), {**old, "spec": spec})
    if server.minor <= 35:
        assert new["spec"] == old["spec"]
        # The generation is computed before the fields are dropped.
        assert new["metadata"]["generation"] == 2


async def test_taint_times(server: Server) -> None:
    """The time of a taint is kept if it is given, and set if not."""
    if server.minor <= 35:
        return
    async with server.client() as client:
        path = protocol.object_path(SLICES, "taint-times")
        old = {**TAINT, "timeAdded": "2020-01-01T00:00:00Z"}
        made = await client.create(SLICES, a_slice("taint-times", taints=[old]))
        assert made["spec"]["devices"][0]["taints"] == [old]
        del made["spec"]["devices"][0]["taints"][0]["timeAdded"]
        new = await client.update(path, made)
        assert new["spec"]["devices"][0]["taints"][0]["timeAdded"] > "2026"
        assert new["metadata"]["generation"] == 2
