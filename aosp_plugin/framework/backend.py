"""The interface between a family of devices and the framework: its names, devices, edits of containers, and backend."""

from __future__ import annotations

import enum
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from aosp_plugin.framework.errors import InvalidRequestError

_EMPTY: Mapping[str, str] = MappingProxyType({})
_NO_ATTRIBUTES: Mapping[str, bool | int | str] = MappingProxyType({})


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


class ClaimParameters(msgspec.Struct, frozen=True):
    """Parameters for this driver in the configuration of a ResourceClaim or its DeviceClass."""

    source: Literal["class", "claim"]
    """class: written by an administrator; claim: written by the user of the pod."""
    content: Any
    """The JSON value as the API server has it."""


@dataclass(frozen=True)
class Found:
    """What one scan of a backend has found. Immutable: any thread may read it.

    A backend may return a subclass with further fields, from which ``allocate`` and the other methods answer.
    """

    devices: Sequence[Device] = ()
    """The devices in the order in which they are advertised.

    IDs must be unique, have 1 to 63 printable characters, and be stable: the kubelet remembers them after a restart.
    The framework skips devices with other IDs and logs a warning."""
    directories: frozenset[str] = frozenset()
    """The directories, as paths of this process, in which a change of files requires a scan."""
    due: float | None = None
    """Seconds after which the next scan is due without a change of files, for example to remove a device that has been
    missing for long enough; None if no such scan is due."""


FoundT = TypeVar("FoundT", bound=Found)


class Backend(ABC, Generic[FoundT]):
    """The devices of one resource on this host.

    A subclass sets ``resource_name`` and implements ``scan`` and ``allocate``; everything else has a default. The
    framework keeps what the last successful ``scan`` has returned, publishes its devices, and passes it on as
    ``found``.

    **Threads.** ``scan`` and whatever may block run in the worker thread of the resource, one call after another;
    ``allocate``, ``prefer``, ``attributes`` and ``is_former`` run in the event loop and answer from what they are
    passed.

    A method that hangs in the worker thread delays the others of that resource: its devices stay published as they are,
    and PreStartContainer fails after its deadline. Nothing else is affected.
    """

    resource_name: str
    """The extended resource that pods request, such as ``example.com/gpu``."""
    get_preferred_allocation_available: bool = False
    """Whether the kubelet calls ``prefer`` before it chooses devices for a container."""
    pre_start_required: bool = False
    """Whether ``pre_start`` is called for allocated devices, and by the kubelet before each start of a container."""
    creates_devices: bool = False
    """Whether ``update_host`` creates devices: the first scan may then find none, and a second one precedes the first
    registration."""

    @abstractmethod
    def scan(self) -> FoundT:
        """Read the state of all devices from the host: after a change of files, and at intervals.

        Raises OSError or PluginError (usually BackendError). The devices of the last successful scan then stay
        advertised, and the framework retries.
        """

    def update_host(self, found: FoundT) -> bool:  # noqa: ARG002 - for subclasses
        """Update what depends on ``found`` on the host, such as CDI specs, and create missing devices.

        Called after each successful scan, when its result is published. Idempotent, and cheap if nothing is to be done.
        Returns whether this, or another call since the scan, has changed the devices, so that the next scan is due now.
        Raises OSError or PluginError. The framework reports the error separately and retries; the devices are published
        nevertheless.
        """
        return False

    @abstractmethod
    def allocate(self, found: FoundT, ids: Sequence[str]) -> ContainerEdits:
        """Return what one container gets for the devices ``ids``.

        Each ID is of a healthy device of ``found``, and occurs once. The method must be idempotent: the kubelet may ask
        for the same ID again, and never reports that a device is released. Raises AllocationError.
        """

    def prefer(self, found: FoundT, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:  # noqa: ARG002 - for subclasses
        """Return the ``size`` IDs out of ``available`` that suit a container best.

        ``must_include`` is a subset of ``available`` that the answer has to contain. The default has no preference.
        """
        chosen = set(must_include)
        others = [device_id for device_id in available if device_id not in chosen]
        return [*must_include, *others][:size]

    def is_former(self, device_id: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether pods may have a device that is no longer listed."""
        return False

    def pre_start(self, found: FoundT, ids: Sequence[str]) -> None:
        """Prepare the devices ``ids`` for a container that is about to start. Idempotent.

        Each ID is of a device of ``found`` that its pod may use. Raises AllocationError if a device cannot be used, and
        OSError or PluginError (usually BackendError) if the host fails.

        The framework also calls it after ``allocate``, because a restarted kubelet may start the container without
        PreStartContainer.

        The kubelet gets DEADLINE_EXCEEDED after ``Timings.pre_start``. The call keeps running in the background, and
        the kubelet asks for the same devices again.
        """

    def attributes(self, found: FoundT, device_id: str) -> Mapping[str, bool | int | str]:  # noqa: ARG002 - for subclasses
        """Return the attributes by which users can select a device of ``found``, for DRA.

        A name without a domain belongs to the driver. The framework adds ``id`` and the NUMA node.
        """
        return _NO_ATTRIBUTES

    def prepare(
        self, found: FoundT, ids: Sequence[str], parameters: Sequence[ClaimParameters]
    ) -> Sequence[ContainerEdits]:
        """Prepare the devices ``ids`` of one request of a ResourceClaim; return what a container gets with each.

        A container with all the devices gets all the edits. Idempotent: a device that is prepared stays as it is,
        because containers may have it; before a device is prepared for another claim, ``unprepare`` is called. After a
        restart of the process, the method is called again for each claim. ``parameters`` come in the order of their
        precedence, the strongest last. Raises AllocationError; an InvalidRequestError names the field of
        ``parameters``.

        The default returns the edits of ``allocate`` with the first device, and accepts no parameters.
        """
        if parameters:
            raise InvalidRequestError(f"{self.resource_name} has no parameters")
        return [self.allocate(found, ids), *[ContainerEdits()] * (len(ids) - 1)]

    def is_prepared(self, found: FoundT, ids: Sequence[str]) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the devices ``ids`` of a prepared claim are as ``prepare`` left them, for example mounted.

        Called every minute. After False, ``prepare`` is called, and the CDI spec is written again, because device nodes
        may have other numbers. Raises OSError or PluginError. The default is True.
        """
        return True

    def unprepare(self, ids: Sequence[str]) -> None:
        """Release the devices ``ids`` of a claim whose containers have ended. Idempotent; IDs may be unknown.

        Raises OSError or PluginError. The framework then retries, and gives the devices to no other claim.
        """

    def places(self, device_id: str) -> Collection[str]:  # noqa: ARG002 - for subclasses
        """Return the paths of a device on the host, links followed, which identify it across drivers.

        Two drivers may list the same device after one of them was renamed. Called for any ID, before ``prepare``.
        Raises OSError or PluginError. By default no other driver has the device.
        """
        return ()

    def close(self) -> None:
        """Release resources, at the end. Raises OSError or PluginError."""


LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."
MAX_DOMAIN_LENGTH = 253
_MAX_NAME_LENGTH = 63
DIGEST_LENGTH = 8

_MAX_STEM_LENGTH = 40
"""The path of a plugin's socket then has at most 100 bytes and the prefix of its name: the kubelet's directory is
compiled in, and has 31."""


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
