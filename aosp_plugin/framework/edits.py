"""What a container gets for its devices, independent of how the container runtime learns it.

A backend returns ``ContainerEdits``; the device plugin API encodes them as an Allocate response
(``deviceplugin/answers.py``) and CDI as a spec file (``cdi/spec.py``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EMPTY: Mapping[str, str] = MappingProxyType({})


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
