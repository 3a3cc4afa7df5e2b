"""The combinations of ``--runtime``: a container runtime, and the OCI runtime that it runs containers with."""

from typing import Final, NamedTuple

CRI_O: Final = "cri-o"
DEBIAN: Final = "debian"
"""Without ``--runtime``: Debian's containerd, without support for CDI."""
WITH_CDI: Final = "with-cdi"
"""Without ``--runtime``: a newer containerd, built by this project."""


class Combination(NamedTuple):
    """What a combination supports."""

    cdi: bool
    user_namespaces: bool
    """Whether it runs pods with ``hostUsers: false``. containerd 1.x cannot; the OCI runtime requires ID-mapped mounts,
    which runc has since 1.2 and crun since 1.9."""
    waits_for_devices: bool = True
    """Whether a container waits for a device that is missing. CRI-O starts it without the device, and reports nothing
    (internal/factory/container/device_linux.go, specAddContainerConfigDevices)."""


DEBIAN_12: Final = "containerd-1.6+runc"
COMBINATIONS: Final = {
    DEBIAN_12: Combination(cdi=False, user_namespaces=False),
    "containerd-1.6+crun": Combination(cdi=False, user_namespaces=False),
    "containerd-1.7+runc": Combination(cdi=True, user_namespaces=False),
    "containerd-1.7+crun": Combination(cdi=True, user_namespaces=False),
    "containerd-2.1+runc": Combination(cdi=True, user_namespaces=True),
    "containerd-2.1+crun": Combination(cdi=True, user_namespaces=True),
    "cri-o+runc": Combination(cdi=True, user_namespaces=True, waits_for_devices=False),
    "cri-o+crun": Combination(cdi=True, user_namespaces=True, waits_for_devices=False),
}
"""By name. ``runtime_parts`` has the versions."""
