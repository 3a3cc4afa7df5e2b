"""The ResourceSlices that a driver wants, and their comparison with the slices in the API server.

All functions are pure. Limits and field names: staging/src/k8s.io/api/resource/v1/types.go. Each pool has one slice, so
that every change is one request: a change of two slices of a pool would require a new generation of both, and the
scheduler allocates nothing from the pool until both are written.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES, ApiUnavailableError, Request
from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.dra import driver_names

AttributeValue: TypeAlias = "bool | int | str"
Json: TypeAlias = dict[str, Any]
Attributes: TypeAlias = Callable[[str], Mapping[str, AttributeValue]]

ID_ATTRIBUTE = "id"
"""The attribute with the device's ID, from which its name in a slice may differ."""

NUMA_ATTRIBUTE = "resource.kubernetes.io/numaNode"
"""The standard name from Kubernetes 1.37 (staging/src/k8s.io/dynamic-resource-allocation/deviceattribute), which
drivers of other devices publish too; older clusters accept it as any other name."""

MAX_VALUE_LENGTH = 64
"""Bytes of a string, ``DeviceAttributeMaxValueLength`` (resource/v1/types.go)."""

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"

EMPTY_BLOCK = "00000"
"""The block of the slice without devices that a driver without devices publishes."""

PROBE_BLOCK = "probe"

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Identity(NamedTuple):
    """The driver and the node of slices."""

    driver: str
    node_name: str
    node_uid: str
    """UID of the Node object; the garbage collector deletes the slices of a Node that is gone."""
    variant: str = ""
    """Letters and digits that are added to the names of slices, because slices of others have the usual names."""


class WantedSlices(NamedTuple):
    """The slices that should exist."""

    slices: Mapping[str, Json]
    """Objects by their names, in the order of the devices; without empty values, as in ``StoredSlice``."""
    left_out: Sequence[str]
    """The IDs of devices for which there is no room in their block."""


class StoredSlice(NamedTuple):
    """A slice as the API server has it."""

    name: str
    resource_version: str
    metadata: Json
    """The metadata in the API server."""
    spec: Json
    """Without empty values, and without the times of taints, which the server adds."""

    @property
    def pool(self) -> object:
        """Name of its pool."""
        pool = self.spec.get("pool")
        return pool.get("name") if isinstance(pool, dict) else None

    def belongs_to(self, driver: str, node_name: str) -> bool:
        """Return whether it is a slice of this driver for this node."""
        return (self.spec.get("driver"), self.spec.get("nodeName")) == (driver, node_name)

    def is_as(self, wanted: Json) -> bool:
        """Return whether the slice equals ``wanted``, apart from labels and annotations."""
        owners = self.metadata.get("ownerReferences")
        return bool(self.spec == wanted["spec"] and owners == wanted["metadata"]["ownerReferences"])


class _Metadata(msgspec.Struct, rename="camel"):
    name: _Text
    uid: _Text
    resource_version: _Text


class _Object(msgspec.Struct):
    """The fields of a slice that are read here."""

    metadata: _Metadata
    spec: Json


def wanted_slices(
    devices: Sequence[Device], attributes: Attributes, identity: Identity, *, taints: bool
) -> WantedSlices:
    """Return the slices for ``devices``. An unhealthy device has a taint, or, without ``taints``, is absent.

    Without devices, there is one empty slice, which shows that the driver runs. The Go helper library does the same.
    """
    blocks: dict[str, dict[str, Json]] = collections.defaultdict(dict)
    left_out = []
    for device in devices:
        block_name, name = _place(device.id)
        block = blocks[block_name]
        if name in block or len(block) == driver_names.DEVICES_PER_SLICE:
            left_out.append(device.id)
        elif device.healthy or taints:
            typed = typed_attributes(device, attributes(device.id))
            block[name] = {"name": name, **({"attributes": typed} if typed else {}), **_taints(device, identity.driver)}
        else:
            block[name] = {}  # no other device gets the place of an unhealthy device
    filled = {block: [device for device in members.values() if device] for block, members in blocks.items()}
    slices = [_slice(block, members, identity) for block, members in (filled or {EMPTY_BLOCK: []}).items()]
    return WantedSlices({wanted["metadata"]["name"]: wanted for wanted in slices}, left_out)


def typed_attributes(device: Device, attributes: Mapping[str, AttributeValue]) -> dict[str, dict[str, Any]]:
    """Return a device's attributes as the API server expects them.

    The ID, and the NUMA node of a device that has exactly one, are added, and replace attributes of these names. A text
    that is too long is omitted: the API server would refuse the whole slice, and a shortened text could equal the text
    of another device, while a selector on a missing attribute fails visibly.
    """
    own: dict[str, AttributeValue] = {ID_ATTRIBUTE: device.id}
    if len(device.numa_nodes) == 1:
        own[NUMA_ATTRIBUTE] = device.numa_nodes[0]
    return {
        name: _typed(value)
        for name, value in {**attributes, **own}.items()
        if not (isinstance(value, str) and len(value.encode(errors="replace")) > MAX_VALUE_LENGTH)
    }


def taint_probe(identity: Identity) -> Json:
    """Return a slice with a taint, for a simulated creation that shows whether the server keeps taints."""
    taint = {"key": f"{identity.driver}/unhealthy", "effect": "NoSchedule"}
    return _slice(PROBE_BLOCK, [{"name": PROBE_BLOCK, "taints": [taint]}], identity)


def has_taints(slice_: Any) -> bool:
    """Return whether a device of a slice has a taint; False for anything but a slice."""
    try:
        return any(device.get("taints") for device in slice_["spec"]["devices"])
    except (AttributeError, KeyError, TypeError):
        return False


def stored_slice(verb: str, obj: Any) -> StoredSlice:
    """Return the slice in an answer of the API server. Raises ApiUnavailableError if ``obj`` is not a valid slice."""
    try:
        metadata = msgspec.convert(obj, _Object).metadata
    except msgspec.ValidationError as error:
        text = f"the object is not a ResourceSlice: {error}"
        raise ApiUnavailableError(Request(verb, RESOURCE_SLICES), text) from error
    return StoredSlice(metadata.name, metadata.resource_version, obj["metadata"], comparable(obj["spec"]))


def replacement(wanted: Json, stored: StoredSlice) -> Json:
    """Return the object of an update: ``wanted`` with what others may have added to its metadata.

    The server sets the times of all taints again. For the effect NoSchedule they mean nothing.
    """
    return {**wanted, "metadata": {**stored.metadata, **wanted["metadata"]}}


def comparable(value: Any) -> Any:
    """Return a JSON value without the times of taints.

    Fields with null, an empty list or an empty object are removed, because they equal missing fields.
    """
    if isinstance(value, dict):
        members = {key: comparable(member) for key, member in value.items() if key != "timeAdded"}
        return {key: member for key, member in members.items() if member is not None and member not in ([], {})}
    if isinstance(value, list):
        return [comparable(member) for member in value]
    return value


@functools.lru_cache(maxsize=16384)
def _place(device_id: str) -> tuple[str, str]:
    """Return block and name of a device."""
    return driver_names.block_of(device_id), driver_names.device_name(device_id)


def _slice(block: str, devices: Sequence[Json], identity: Identity) -> Json:
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": identity.node_name,
        "uid": identity.node_uid,
        "controller": True,
    }
    spec = {
        "driver": identity.driver,
        "nodeName": identity.node_name,
        "pool": {"name": driver_names.pool_name(identity.node_name, block), "generation": 1, "resourceSliceCount": 1},
        **({"devices": devices} if devices else {}),
    }
    name = driver_names.slice_name(identity.driver, identity.node_name, block + identity.variant)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": spec,
    }


def _taints(device: Device, driver: str) -> Json:
    """Return the taint of an unhealthy device, which keeps new pods away and does not affect its own pod."""
    if device.healthy:
        return {}
    taint = {"key": f"{driver}/unhealthy", "value": driver_names.label_value(device.reason), "effect": "NoSchedule"}
    return {"taints": [{key: value for key, value in taint.items() if value}]}


def _typed(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value}
