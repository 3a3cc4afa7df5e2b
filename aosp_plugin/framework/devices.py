"""Values of a plugin: names of resources, devices, and the edits that a container gets with its devices."""

import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."
MAX_DOMAIN_LENGTH = 253
_MAX_NAME_LENGTH = 63
_EMPTY: Mapping[str, str] = MappingProxyType({})

DIGEST_LENGTH = 8

_MAX_STEM_LENGTH = 40
"""The path of a plugin's socket then has at most 100 bytes and the prefix of its name: the kubelet's directory is
compiled in, and has 31."""

MAX_ID_LENGTH = 63
"""Characters in a device ID (comment at ``Device.ID`` in the kubelet's api.proto)."""


class Device(NamedTuple):
    """A device that the kubelet can allocate."""

    id: str
    reason: str = ""
    """Why the device is unhealthy, as one word for programs; empty if it is healthy."""
    numa_nodes: tuple[int, ...] = ()
    detail: str = ""
    """The reason in a sentence, for people; empty if there is no more to say."""
    open_to_owner: bool = False
    """Whether the pod that has the unhealthy device may start its container again."""

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may allocate the device."""
        return not self.reason


def id_problem(device_id: str) -> str | None:
    """Return why this device ID cannot be advertised; None if it is valid.

    ``str.isprintable`` is false for control characters, and for the surrogates that represent bytes that are not UTF-8,
    which a protobuf string cannot carry.
    """
    if not device_id:
        return "the ID is empty"
    if len(device_id) > MAX_ID_LENGTH:
        return f"the ID has {len(device_id)} characters; the limit is {MAX_ID_LENGTH}"
    if not device_id.isprintable():
        return "the ID has characters that are not printable"
    return None


class DeviceNode(NamedTuple):
    """A device node that the runtime creates in the container, and allows in the container's device cgroup."""

    host_path: str
    container_path: str
    permissions: str = "rw"
    """One or more of r (read), w (write) and m (mknod)."""


class Mount(NamedTuple):
    """A bind mount of a file or directory of the host."""

    host_path: str
    container_path: str
    read_only: bool = True


class ContainerEdits(NamedTuple):
    """Everything that one container gets for its devices."""

    devices: Sequence[DeviceNode] = ()
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = _EMPTY
    cdi_devices: Sequence[str] = ()
    """Qualified CDI names, such as ``example.com/gpu=gpu0``. Requires Kubernetes 1.28."""
    annotations: Mapping[str, str] = _EMPTY
    """For the container runtime; not visible in the Pod object."""


class DeviceList(enum.StrEnum):
    """A strategy to pass devices to containers. NVIDIA's device plugin has the same ones."""

    ENVVAR = "envvar"
    """An environment variable with the names of the devices."""
    VOLUME_MOUNTS = "volume-mounts"
    """Devices and mounts in the Allocate response, which every kubelet and runtime supports."""
    CDI_CRI = "cdi-cri"
    """CDI names in the Allocate response, which the kubelet passes to the runtime in a field of the CRI (kubelet 1.28,
    containerd 1.7)."""
    CDI_ANNOTATIONS = "cdi-annotations"
    """CDI names in an annotation of the container, for older versions."""


CDI = frozenset({DeviceList.CDI_CRI, DeviceList.CDI_ANNOTATIONS})
"""The strategies that require a spec file."""


def shortened(name: str, limit: int) -> str:
    """Return a name, of which one of more than ``limit`` characters is cut and gets a digest of the whole name."""
    return name if len(name) <= limit else f"{name[: limit - DIGEST_LENGTH - 1].rstrip('-.')}-{digest(name)}"


def file_stem(resource_name: str) -> str:
    """Return the beginning of the names of a resource's files, such as its sockets; resources have different ones."""
    return shortened(resource_name.replace("/", "_"), _MAX_STEM_LENGTH)


def digest(text: str) -> str:
    """Return ``DIGEST_LENGTH`` characters that distinguish a name from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def is_extended_resource_name(name: str) -> bool:
    """Return whether a kubelet accepts a resource of this name, such as ``example.com/gpu``.

    pkg/apis/core/v1/helper/helpers.go ``IsExtendedResourceName``: a name in a domain outside kubernetes.io that is
    still a qualified name after a quota has put ``requests.`` in front, which leaves 244 characters for the domain.
    """
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith(_QUOTA_PREFIX)
        and len(_QUOTA_PREFIX + domain) <= MAX_DOMAIN_LENGTH
        and DOMAIN.fullmatch(domain) is not None
        and len(rest) <= _MAX_NAME_LENGTH
        and _NAME.fullmatch(rest) is not None
    )
