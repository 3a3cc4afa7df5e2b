"""Value types: pods, and what their containers were given."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Container:
    """A container and its ``limits``, resource name to count. The kubelet does not read ``requests``."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    restartable: bool = False
    """Whether an init container has ``restartPolicy: Always`` (a sidecar). Ignored in ``Pod.containers``."""


@dataclass(frozen=True)
class Pod:
    """A pod, identified by its ``uid``, which is derived from the name by default."""

    name: str
    containers: Sequence[Container]
    init_containers: Sequence[Container] = ()
    uid: str = ""

    def __post_init__(self) -> None:
        """Derive the UID (pkg/kubelet/config/common.go: an MD5 hash)."""
        if not self.uid:
            digest = hashlib.md5(self.name.encode(), usedforsecurity=False).digest()
            object.__setattr__(self, "uid", str(uuid.UUID(bytes=digest)))

    def container(self, name: str) -> Container:
        """Return the container or init container with this name; KeyError if there is none."""
        for container in (*self.init_containers, *self.containers):
            if container.name == name:
                return container
        raise KeyError(name)


@dataclass(frozen=True)
class Mount:
    """A mount that the container runtime gets."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True)
class DeviceSpec:
    """A device that the container runtime gets."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True)
class ContainerAllocation:
    """What one container gets: its device IDs by resource, and the merged plugin responses."""

    name: str
    device_ids: Mapping[str, tuple[str, ...]]
    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True)
class AdmittedPod:
    """An admitted pod: the allocation of each container, init containers included, by container name."""

    name: str
    uid: str
    containers: Mapping[str, ContainerAllocation]


class AdmissionError(Exception):
    """The pod was rejected, or a container cannot start. ``reason`` and ``message`` are the kubelet's."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
