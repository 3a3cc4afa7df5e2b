"""The ResourceSlices that a driver wants, and how they compare with those that the API server has.

All functions are pure. Limits and field names: staging/src/k8s.io/api/resource/v1/types.go. One pool has one slice, so
that every change is one request: a change of two slices of a pool would require a new generation of both, and nothing
is allocated from the pool until both are written.

An attribute that the API server would refuse is omitted, because it would refuse the whole slice. It is not truncated:
a truncated value could equal that of another device, while a selector on a missing attribute fails visibly.
"""

from __future__ import annotations

import collections
import functools
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec

from aosp_plugin.framework.backend import Version
from aosp_plugin.framework.dra.names import (
    DEVICES_PER_SLICE,
    block_of,
    device_name,
    is_subdomain,
    label_value,
    pool_name,
    slice_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.devices import Device

    AttributeValue: TypeAlias = bool | int | str | Version
    Json: TypeAlias = dict[str, Any]
    Attributes: TypeAlias = Callable[[str], Mapping[str, AttributeValue]]

ID_ATTRIBUTE = "id"
"""The device's ID, whose name in a slice may differ from it."""

NUMA_ATTRIBUTE = "resource.kubernetes.io/numaNode"
"""The standard name from Kubernetes 1.37 (staging/src/k8s.io/dynamic-resource-allocation/deviceattribute), which
drivers of other devices publish too; older clusters accept it as any other name."""

MAX_ATTRIBUTES = 32
"""Of a device, ``ResourceSliceMaxAttributesAndCapacitiesPerDevice`` (resource/v1/types.go)."""

MAX_VALUE_LENGTH = 64
"""Bytes of a string or version, ``DeviceAttributeMaxValueLength`` (resource/v1/types.go)."""

MAX_NAME_LENGTH, MAX_DOMAIN_LENGTH = 32, 63
"""Characters, ``DeviceMaxIDLength`` and ``DeviceMaxDomainLength`` (resource/v1/types.go)."""

_INT64 = range(-(2**63), 2**63)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMERIC = r"(0|[1-9]\d*)"
_PRE_RELEASE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION = re.compile(
    rf"{_NUMERIC}\.{_NUMERIC}\.{_NUMERIC}(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"

EMPTY_BLOCK = "00000"
"""The block of the slice without devices that a driver without devices publishes."""

PROBE_BLOCK = "probe"

TAINTS_FIELD = "spec.devices[].taints"
"""The field that servers without the feature gate DRADeviceTaints drop (pkg/registry/resource/resourceslice)."""

_KEPT_METADATA = frozenset({"annotations", "finalizers", "labels", "ownerReferences"})
"""Metadata of others that an update leaves as it is, and owner references for the comparison."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Identity(NamedTuple):
    """Whose slices these are."""

    driver: str
    node_name: str
    node_uid: str
    """UID of the Node object; the garbage collector deletes the slices of a Node that is gone."""


class WantedSlices(NamedTuple):
    """The slices that should exist."""

    slices: Mapping[str, Json]
    """Objects by their names, in the order of the devices; without empty values, as in ``StoredSlice``."""
    left_out: Mapping[str, str]
    """Why a device is in no slice, by its ID."""
    attribute_problems: Mapping[str, str]
    """Each reason why attributes are omitted, with the ID of the first device."""


class StoredSlice(NamedTuple):
    """A slice as the API server has it."""

    name: str
    uid: str
    resource_version: str
    deleting: bool
    """Whether it has been deleted, but remains until its finalizers are removed."""
    metadata: Json
    """Without the fields that only the server maintains."""
    spec: Json
    """Without empty values."""
    manager: str
    """Name of the client that wrote it last, for logs; may be empty."""

    @property
    def pool(self) -> object:
        """Name of its pool."""
        pool = self.spec.get("pool")
        return pool.get("name") if isinstance(pool, dict) else None

    def belongs_to(self, driver: str, node_name: str) -> bool:
        """Return whether it is a slice of this driver for this node."""
        return (self.spec.get("driver"), self.spec.get("nodeName")) == (driver, node_name)


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str = ""
    timeAdded: str | None = None  # noqa: N815 - the API's names, here and below


class _Device(msgspec.Struct):
    name: _Text
    taints: list[_Taint] | None = None


class _Spec(msgspec.Struct):
    devices: list[_Device] | None = None


class _Manager(msgspec.Struct):
    manager: str = ""


class _Metadata(msgspec.Struct):
    name: _Text
    uid: _Text
    resourceVersion: _Text  # noqa: N815
    deletionTimestamp: str | None = None  # noqa: N815
    managedFields: list[_Manager] | None = None  # noqa: N815


class _Object(msgspec.Struct):
    """What is read of a slice; the rest is compared, or left as it is."""

    metadata: _Metadata
    spec: _Spec


def wanted_slices(
    devices: Sequence[Device], attributes: Attributes, identity: Identity, *, taints: bool
) -> WantedSlices:
    """Return the slices for ``devices``, in which an unhealthy device has a taint, or, without ``taints``, is absent.

    Without devices, it is one empty slice: the driver runs, and has none. The helper of drivers in Go does the same.
    """
    blocks: dict[str, dict[str, Json]] = collections.defaultdict(dict)
    left_out: dict[str, str] = {}
    attribute_problems: dict[str, str] = {}
    for device in devices:
        block_name, name = _place(device.id)
        block = blocks[block_name]
        if name in block:
            left_out[device.id] = f"another device of the block has the name {name}"
        elif len(block) == DEVICES_PER_SLICE:
            left_out[device.id] = f"the block {block_name} has {DEVICES_PER_SLICE} devices already"
        elif device.healthy or taints:
            typed, problems = typed_attributes(device, attributes(device.id))
            attribute_problems.update({problem: device.id for problem in problems if problem not in attribute_problems})
            block[name] = {"name": name, **({"attributes": typed} if typed else {}), **_taints(device, identity.driver)}
        else:
            block[name] = {}  # the place of an unhealthy device is not given to another one
    filled = {block: [device for device in members.values() if device] for block, members in blocks.items()}
    slices = [_slice(block, members, identity) for block, members in (filled or {EMPTY_BLOCK: []}).items()]
    return WantedSlices({wanted["metadata"]["name"]: wanted for wanted in slices}, left_out, attribute_problems)


def typed_attributes(
    device: Device, attributes: Mapping[str, AttributeValue]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return a device's attributes as the API server expects them, and why others are omitted.

    The ID, and the NUMA node of a device that has exactly one, are added, and replace attributes of these names.
    """
    own: dict[str, AttributeValue] = {ID_ATTRIBUTE: device.id}
    if len(device.numa_nodes) == 1:
        own[NUMA_ATTRIBUTE] = device.numa_nodes[0]
    typed: dict[str, dict[str, Any]] = {}
    problems = []
    for name, value in {**own, **attributes, **own}.items():  # in this order, as the limit is for the last ones
        problem = _problem(name, value)
        if not problem and len(typed) == MAX_ATTRIBUTES:
            problem = f"a device has at most {MAX_ATTRIBUTES}"
        if problem:
            problems.append(f"attribute {name} is omitted: {problem}")
        else:
            typed[name] = _typed(value)
    return typed, problems


def taint_probe(identity: Identity) -> Json:
    """Return a slice with a taint, whose creation is only simulated, to learn whether the server keeps taints."""
    taint = {"key": f"{identity.driver}/unhealthy", "effect": "NoSchedule"}
    return _slice(PROBE_BLOCK, [{"name": PROBE_BLOCK, "taints": [taint]}], identity)


def has_taint(answer: Any) -> bool:
    """Return whether the server has kept the taint of ``taint_probe``."""
    try:
        return bool(answer["spec"]["devices"][0]["taints"])
    except (KeyError, IndexError, TypeError):
        return False


def stored_slice(obj: Any) -> StoredSlice:
    """Return what the API server has. Raises ValueError if ``obj`` is not a valid object."""
    try:
        checked = msgspec.convert(obj, _Object)
    except msgspec.ValidationError as error:
        raise ValueError(f"the object is not a ResourceSlice: {error}") from error
    metadata, managers = checked.metadata, checked.metadata.managedFields
    return StoredSlice(
        metadata.name,
        metadata.uid,
        metadata.resourceVersion,
        bool(metadata.deletionTimestamp),
        {key: value for key, value in obj["metadata"].items() if key in _KEPT_METADATA},
        without_empty(obj["spec"]),
        managers[-1].manager if managers else "",
    )


def differences(wanted: Json, stored: StoredSlice) -> frozenset[str]:
    """Return which fields differ, such as ``spec.devices[].taints``; empty if the slice is as it should be.

    The time that the server adds to a taint does not count, and nor do labels and annotations.
    """
    if (
        stored.spec == wanted["spec"]
        and stored.metadata.get("ownerReferences") == wanted["metadata"]["ownerReferences"]
    ):
        return frozenset()
    owners, stored_owners = wanted["metadata"]["ownerReferences"], stored.metadata.get("ownerReferences")
    return frozenset(
        [
            *_differing("spec", wanted["spec"], stored.spec),
            *_differing("metadata.ownerReferences", owners, stored_owners),
        ]
    )


def replacement(wanted: Json, stored: StoredSlice) -> Json:
    """Return the object of an update: ``wanted`` with what others may have added, and with the times of taints."""
    metadata = {
        **stored.metadata,
        **wanted["metadata"],
        "uid": stored.uid,
        "resourceVersion": stored.resource_version,
    }
    times = {
        (device.get("name"), *_taint_key(taint)): taint["timeAdded"]
        for device in stored.spec.get("devices", [])
        for taint in device.get("taints", [])
        if "timeAdded" in taint
    }
    devices = []
    for device in wanted["spec"].get("devices", []):
        taints = [
            {**taint, "timeAdded": times[key]} if (key := (device["name"], *_taint_key(taint))) in times else taint
            for taint in device.get("taints", [])
        ]
        devices.append({**device, "taints": taints} if taints else device)
    return {**wanted, "metadata": metadata, "spec": {**wanted["spec"], "devices": devices}}


def without_empty(value: Any) -> Any:
    """Return a JSON value without null, empty lists and empty objects in objects: they equal missing fields."""
    if isinstance(value, dict):
        members = {key: without_empty(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member is not None and member not in ([], {})}
    if isinstance(value, list):
        return [without_empty(member) for member in value]
    return value


@functools.lru_cache(maxsize=16384)
def _place(device_id: str) -> tuple[str, str]:
    """Return block and name of a device."""
    return block_of(device_id), device_name(device_id)


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
        "pool": {"name": pool_name(identity.node_name, block), "generation": 1, "resourceSliceCount": 1},
        **({"devices": devices} if devices else {}),
    }
    name = slice_name(identity.driver, identity.node_name, block)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": spec,
    }


def _taints(device: Device, driver: str) -> Json:
    """Return the taint of an unhealthy device, which keeps new pods away and leaves those that have it."""
    if device.healthy:
        return {}
    taint = {"key": f"{driver}/unhealthy", "value": label_value(device.reason), "effect": "NoSchedule"}
    return {"taints": [{key: value for key, value in taint.items() if value}]}


def _taint_key(taint: Json) -> tuple[Any, Any, Any]:
    return taint.get("key"), taint.get("value"), taint.get("effect")


def _differing(path: str, wanted: Any, stored: Any) -> Iterator[str]:
    """Yield the paths at which two JSON values differ; lists of different lengths differ as a whole."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        for key in sorted({*wanted, *stored}):
            if not (key == "timeAdded" and key not in wanted):
                yield from _differing(f"{path}.{key}", wanted.get(key), stored.get(key))
    elif isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        for left, right in zip(wanted, stored, strict=True):
            yield from _differing(f"{path}[]", left, right)
    elif wanted != stored:
        yield path


def _typed(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, Version):
        return {"version": str(value)}
    return {"string": value}


@functools.lru_cache(maxsize=4096, typed=True)  # most attributes are the same for many devices
def _problem(name: str, value: AttributeValue) -> str:
    """Return why the API server would refuse an attribute; empty if it would not."""
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > MAX_DOMAIN_LENGTH or not is_subdomain(domain)):
        return "the domain of its name is invalid"
    if len(identifier) > MAX_NAME_LENGTH or _IDENTIFIER.fullmatch(identifier) is None:
        return f"its name must be an identifier of at most {MAX_NAME_LENGTH} characters"
    if isinstance(value, int):
        return "" if value in _INT64 else "the number does not fit into 64 bits"
    length = len(value.encode(errors="surrogatepass"))
    if length > MAX_VALUE_LENGTH:
        return f"the value has {length} bytes; the limit is {MAX_VALUE_LENGTH}"
    if isinstance(value, Version) and _VERSION.fullmatch(value) is None:
        return "the value is not a semantic version"
    return ""
