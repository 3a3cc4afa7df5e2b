"""What a container needs for its nodes: devices, mounts and environment.

Why a Mount beside the device, measured with runc and crun: a runtime turns a device into mknod, and a copy of
a binderfs node opens with ENXIO, since binderfs makes no cdev and only its own inode leads to the driver
(drivers/android/binderfs.c ``binderfs_binder_device_create``; fs/char_dev.c ``chrdev_open``). A bind mount
alone brings the inode, and the device cgroup refuses it with EPERM (include/linux/device_cgroup.h). With both
at one path, the mount is made first and the runtime accepts that mknod finds the file there (runc,
libcontainer/rootfs_linux.go ``createDeviceNode``).

The mount is read-only: a node opens for reading and writing all the same (fs/namei.c ``sb_permission`` asks for files,
directories and links alone), and a container's root can't change the mode or the owner of the host's node, which would
lock out the next tenant's users. Measured on Linux 6.1: EROFS for both.

A further path of a node (``/dev/binder``) gets the mount alone, whatever the node's kind: the cgroup is open already,
and in a pod with a user namespace a device must have its host path.

Nothing here knows of gRPC or of CDI files: ``plugin`` puts the edits into the kubelet's message.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTAINER_DIRECTORY = "/dev"
"""Where a container finds its nodes, wherever the host has them."""

OWN_BINDERFS = "binderfs"
"""The host side of a shared directory that stands for the binderfs of the container's own nodes."""


class Isolation(enum.StrEnum):
    """How much of the host's binderfs a container sees."""

    SHARED = "shared"
    """The directory, read-only: others' nodes are listed, and neither open, unlink nor rename works on them."""
    STRICT = "strict"
    """Its own nodes alone."""


class Device(NamedTuple):
    """A device node that the runtime makes in the container, and allows in its device cgroup."""

    host_path: str
    container_path: str
    permissions: str


class Mount(NamedTuple):
    """A bind mount."""

    host_path: str
    container_path: str
    read_only: bool


class SharedPath(NamedTuple):
    """A path of the host that every container gets, where it exists."""

    host_path: str
    container_path: str


class Edits(NamedTuple):
    """All that one container needs for its nodes."""

    devices: tuple[Device, ...]
    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]


class Policy(NamedTuple):
    """What the operator decided about containers; see ``config`` for each."""

    permissions: str = "rw"
    isolation: Isolation = Isolation.SHARED
    shared_mounts: Sequence[SharedPath] = (SharedPath(OWN_BINDERFS, "/dev/binderfs"),)
    shared_devices: Sequence[SharedPath] = (SharedPath("/dev/ashmem", "/dev/ashmem"),)
    visible_devices_variable: str = "BINDER_VISIBLE_DEVICES"
    path: str = "/system/bin:/system/xbin"
    container_paths: Sequence[str] = ()
    """Where a container finds its first nodes as well, in turn."""


def edits_for(nodes: Sequence[BinderDevice], policy: Policy, present: frozenset[str]) -> Edits:
    """Return what a container with these ``nodes`` needs.

    ``nodes`` are in the order in which the container gets them; one that comes again is passed over. ``present`` are
    those host paths of ``policy``'s shared mounts and devices that exist.
    """
    own = tuple(dict.fromkeys(nodes))
    devices = [Device(node.path, container_path(node), policy.permissions) for node in own]
    mounts = [Mount(node.path, container_path(node), read_only=True) for node in own if node.kind is Kind.BINDERFS]
    # Fewer nodes than paths: the first paths. More: the rest have their own names only.
    mounts += [
        Mount(node.path, path, read_only=True)
        for node, path in zip(own, policy.container_paths, strict=False)
        if path != container_path(node)
    ]
    devices += [Device(*shared, policy.permissions) for shared in policy.shared_devices if shared.host_path in present]
    mounts += _shared_mounts(own, policy, present)
    return Edits(tuple(devices), tuple(mounts), _environment(own, policy))


def container_path(node: BinderDevice) -> str:
    """Return where a container finds the node."""
    return f"{CONTAINER_DIRECTORY}/{node.name}"


def _shared_mounts(own: Sequence[BinderDevice], policy: Policy, present: frozenset[str]) -> list[Mount]:
    """Read-only always: in a writable binderfs any root could unlink or rename every tenant's nodes."""
    if policy.isolation is Isolation.STRICT:
        return []
    binderfs = next((node.directory for node in own if node.directory), "")
    mounts = []
    for shared in policy.shared_mounts:
        host_path = binderfs if shared.host_path == OWN_BINDERFS else shared.host_path
        if host_path and (host_path in present or host_path == binderfs):
            mounts.append(Mount(host_path, shared.container_path, read_only=True))
    return mounts


def _environment(own: Sequence[BinderDevice], policy: Policy) -> dict[str, str]:
    environment = {}
    if policy.visible_devices_variable:
        environment[policy.visible_devices_variable] = ",".join(node.name for node in own)
    if policy.path:
        environment["PATH"] = policy.path
    return environment
