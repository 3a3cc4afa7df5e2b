"""The strategies by which a container gets its devices and learns their names."""

from __future__ import annotations

import enum


class DeviceList(enum.StrEnum):
    """A strategy. Names and meanings are those of NVIDIA's device plugin."""

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
