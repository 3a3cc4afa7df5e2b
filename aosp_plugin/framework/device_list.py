"""The ways in which a container can get its devices and learn which they are."""

from __future__ import annotations

import enum


class DeviceList(enum.StrEnum):
    """Named as in NVIDIA's plugin, where they have the same meaning."""

    ENVVAR = "envvar"
    """An environment variable with their names."""
    VOLUME_MOUNTS = "volume-mounts"
    """Devices and mounts in the answer to the kubelet, which every kubelet and runtime knows."""
    CDI_CRI = "cdi-cri"
    """CDI names in the answer, which the kubelet hands to the runtime in a field of the CRI (kubelet 1.28, containerd
    1.7)."""
    CDI_ANNOTATIONS = "cdi-annotations"
    """CDI names in an annotation of the container, for older ones."""


CDI = frozenset({DeviceList.CDI_CRI, DeviceList.CDI_ANNOTATIONS})
"""Those that need a spec file."""
