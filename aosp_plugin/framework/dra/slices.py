"""The ResourceSlices that a driver wants, the names in them, and their comparison with the slices in the API server.

All functions are pure. Limits and field names: staging/src/k8s.io/api/resource/v1/types.go; rules for names:
pkg/apis/resource/validation/validation.go. Each pool has one slice, so that every change is one request: a change of
two slices of a pool would require a new generation of both, and the scheduler allocates nothing from the pool until
both are written.
"""

import collections
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES, ApiUnavailableError, Request
from aosp_plugin.framework.backend import DIGEST_LENGTH, DOMAIN, LABEL, Device, digest
from aosp_plugin.framework.cdi import kind_problem

AttributeValue: TypeAlias = "bool | int | str"
Json: TypeAlias = dict[str, Any]
Attributes: TypeAlias = Callable[[str], Mapping[str, AttributeValue]]

ID_ATTRIBUTE = "id"
"""The attribute with the device's ID, from which its name in a slice may differ."""

NUMA_ATTRIBUTE = "resource.kubernetes.io/numaNode"
"""The standard name from Kubernetes 1.37 (staging/src/k8s.io/dynamic-resource-allocation/deviceattribute), which
drivers of other devices publish too; older clusters accept it as any other name."""

MAX_VALUE_LENGTH = 64
"""Bytes of a string, ``DeviceAttributeMaxValueLength``."""

EMPTY_BLOCK = "00000"
"""The block of the slice without devices that a driver without devices publishes."""

PROBE_BLOCK = "probe"

DEVICES_PER_SLICE = 64
"""The most devices of a slice with taints (``ResourceSliceMaxDevicesWithTaintsOrConsumesCounters``). Every slice has
room for taints at any time, because a device must never change its pool: a claim names its device by driver, pool and
device name."""

HASH_BLOCKS = 64
"""Number of blocks for devices whose ID does not end in a number."""

MAX_DRIVER_NAME_LENGTH = 63
MAX_DEVICE_NAME_LENGTH = 63  # of a DNS label, and of the value of a label

MAX_NODE_LENGTH = 150
"""Characters of a Node's name in the names of pools and slices. With the name of a driver, a block and separators, a
name then has at most 253 characters."""

_FINAL_NUMBER = re.compile(r"(\d{1,18})$")

_Text = Annotated[str, msgspec.Meta(min_length=1)]


def driver_name(resource_name: str) -> str:
    """Return the name of the driver of a resource: NAME.DOMAIN, such as gpu.example.com for example.com/gpu."""
    domain, _, name = resource_name.partition("/")
    return f"{name}.{domain}"


def driver_name_problem(resource_name: str) -> str | None:
    """Return why a resource cannot be served by a DRA driver; None if it can."""
    name = driver_name(resource_name)
    if len(name) > MAX_DRIVER_NAME_LENGTH:
        return f"the driver name {name} has {len(name)} characters; the limit is {MAX_DRIVER_NAME_LENGTH}"
    if not DOMAIN.fullmatch(name):
        return f"the driver name {name} must consist of lower case letters, digits, '-' and '.'"
    if problem := kind_problem(claim_kind(name)):
        return f"the driver name {name} cannot be the vendor of a CDI kind: {problem}"
    return None


def claim_kind(driver: str) -> str:
    """Return the CDI kind of the devices of a driver's claims, such as gpu.example.com/claim."""
    return f"{driver}/claim"


@functools.lru_cache(maxsize=16384)
def device_name(device_id: str) -> str:
    """Return the name of a device in slices, a DNS label; different IDs have different names.

    It is the ID with dashes for underscores, if that is a DNS label and the ID has no dash: gpu7 stays, and gpu_7 is
    gpu-7. Another ID gets a digest, behind two dashes: ttyUSB0 is ttyusb0--8acffaea.
    """
    simple = device_id.replace("_", "-")
    is_label = len(simple) <= MAX_DEVICE_NAME_LENGTH and re.fullmatch(LABEL, simple)
    if "-" not in device_id and "--" not in simple and is_label:
        return simple
    suffix = digest(device_id)
    stem = re.sub(r"[^a-z0-9]+", "-", device_id.lower()).strip("-")[: MAX_DEVICE_NAME_LENGTH - DIGEST_LENGTH - 2]
    return f"{stem.rstrip('-')}--{suffix}" if stem else f"device--{suffix}"


def ids_by_name(ids: Iterable[str]) -> dict[str, str]:
    """Return device IDs by their names in slices, for ``device_id``."""
    return {device_name(device_id): device_id for device_id in ids}


def device_id(name: str, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the ID of the device ``name`` in slices: the inverse of ``device_name``.

    The ID of a name with a digest is looked up in ``known`` (``ids_by_name``); without it, the name is returned.
    """
    return known.get(name, name) if "--" in name else name.replace("-", "_")


@functools.lru_cache(maxsize=16384)
def block_of(device_id: str) -> str:
    """Return the block of devices to which a device belongs, from its ID alone, so that it never changes.

    Each block has a pool and a slice. Devices with numbers are divided into blocks of consecutive numbers.
    """
    match = _FINAL_NUMBER.search(device_id)
    if match is None:
        return f"x{int(digest(device_id), 16) % HASH_BLOCKS:02}"
    return f"{int(match[1]) // DEVICES_PER_SLICE:05}"


def pool_name(node_name: str, block: str) -> str:
    """Return the name of the pool of a block. Schedulers from 1.36 try pools in the order of their names."""
    return f"{_shortened(node_name)}/{block}"


def slice_name(driver: str, node_name: str, block: str) -> str:
    """Return the name of the ResourceSlice of a block. It never changes, so creating a slice twice is a conflict.

    It is ``block``, which has no dash, and ``-DRIVER-NODE``, which the policy in deploy/dra compares with the token.
    """
    return f"{block}-{driver}-{_shortened(node_name)}"


def _shortened(node_name: str) -> str:
    """Return a Node's name, shortened with a digest if it is long. The policy in deploy/dra compares its beginning."""
    if len(node_name) <= MAX_NODE_LENGTH:
        return node_name
    return node_name[: MAX_NODE_LENGTH - DIGEST_LENGTH] + digest(node_name)


def label_value(text: str) -> str:
    """Return ``text`` as a valid value of a label, as values of taints must be."""
    return re.sub(r"[^-A-Za-z0-9_.]+", "-", text)[:MAX_DEVICE_NAME_LENGTH].strip("-_.")


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
        block, name = blocks[block_of(device.id)], device_name(device.id)
        if name in block or len(block) == DEVICES_PER_SLICE:
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
    name = slice_name(identity.driver, identity.node_name, block + identity.variant)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": spec,
    }


def _taints(device: Device, driver: str) -> Json:
    """Return the taint of an unhealthy device, which keeps new pods away and does not affect its own pod."""
    if device.healthy:
        return {}
    taint = {"key": f"{driver}/unhealthy", "value": label_value(device.reason), "effect": "NoSchedule"}
    return {"taints": [{key: value for key, value in taint.items() if value}]}


def _typed(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value}
