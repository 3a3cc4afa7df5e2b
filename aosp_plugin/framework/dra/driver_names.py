"""Names of the DRA driver of a resource, and of its pools, slices and devices; values of labels.

The API server's rules are in pkg/apis/resource/validation/validation.go. All functions here are pure.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from aosp_plugin.framework.backend import DIGEST_LENGTH, DOMAIN, LABEL, digest
from aosp_plugin.framework.cdi import kind_problem

DEVICES_PER_SLICE = 64
"""The most devices of a slice in which devices may have taints (staging/src/k8s.io/api/resource/v1/types.go,
``ResourceSliceMaxDevicesWithTaintsOrConsumesCounters``). Every slice has room for taints at any time, because a device
must never change its pool: a claim names its device by driver, pool and device name."""

HASH_BLOCKS = 64
"""Number of blocks for devices whose ID does not end in a number."""

MAX_DRIVER_NAME_LENGTH = 63
MAX_DEVICE_NAME_LENGTH = 63  # of a DNS label, and of the value of a label

MAX_NODE_LENGTH = 150
"""Characters of a Node's name in the names of pools and slices. With the name of a driver, a block and separators, a
name then has at most 253 characters."""

_FINAL_NUMBER = re.compile(r"(\d{1,18})$")


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
