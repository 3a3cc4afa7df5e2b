"""Pods as the stand-in takes them, and what becomes of them. Values only."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Container:
    """A container and the ``limits`` it asks for, resource name to count; ``requests`` are never read."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    restartable: bool = False
    """An init container with ``restartPolicy: Always`` (a sidecar). Means nothing in ``Pod.containers``."""


@dataclass(frozen=True)
class Pod:
    """A pod. Pods of the same ``uid`` are the same pod; it follows from the name if none is given."""

    name: str
    containers: Sequence[Container]
    init_containers: Sequence[Container] = ()
    uid: str = ""

    def __post_init__(self) -> None:
        """Derive the uid (pkg/kubelet/config/common.go: an MD5 of what defines the pod)."""
        if not self.uid:
            digest = hashlib.md5(self.name.encode(), usedforsecurity=False).digest()
            object.__setattr__(self, "uid", str(uuid.UUID(bytes=digest)))

    def container(self, name: str) -> Container:
        """Return the container of this name, an init container or not; KeyError without one."""
        for container in (*self.init_containers, *self.containers):
            if container.name == name:
                return container
        raise KeyError(name)


@dataclass(frozen=True)
class Mount:
    """A host path inside the container, as handed to the container runtime."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True)
class DeviceSpec:
    """A device node inside the container, as handed to the container runtime."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True)
class ContainerAllocation:
    """What one container gets: its device ids per resource, and the plugins' answers merged into one."""

    name: str
    device_ids: Mapping[str, tuple[str, ...]]
    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[DeviceSpec, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True)
class AdmittedPod:
    """A pod that may run: what each of its containers gets, init containers included, by container name."""

    name: str
    uid: str
    containers: Mapping[str, ContainerAllocation]


class AdmissionError(Exception):
    """The pod, or a container of it, may not run; ``reason`` and ``message`` are the kubelet's words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
