"""What kind of binder devices a resource has, and which driver they belong to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.driver import binderfs

if TYPE_CHECKING:
    from collections.abc import Collection

    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.driver.host import Host

_FILE_SYSTEMS = "/proc/filesystems"
_LISTED = (Kind.BINDERFS, Kind.CDEV, Kind.STAND_IN, Kind.FILE)


class DriverKind(NamedTuple):
    """Both are empty while they are unknown."""

    kind: str
    """binderfs, cdev, stand-in or file: the first of these that there is."""
    driver: str
    """The implementation of the driver, c or rust; empty for devices that are not binder."""


def driver_kind(host: Host, devices: Collection[BinderDevice]) -> DriverKind:
    """Return the kind of the devices, and their driver. Reads the host: for a worker thread."""
    kinds = {device.kind for device in devices}
    kind = next((kind for kind in _LISTED if kind in kinds), "")
    return DriverKind(str(kind), driver_of(host, devices))


def driver_of(host: Host, devices: Collection[BinderDevice]) -> str:
    """Return the implementation of the driver of the first device in a binderfs; c for other binder devices.

    Reads the host: for a worker thread.
    """
    directory = next((device.directory for device in devices if device.directory), None)
    if directory is None:
        return binderfs.C if any(device.kind is Kind.CDEV for device in devices) else ""
    with contextlib.suppress(OSError):
        return binderfs.implementation(host.process_path(directory))
    return ""


def has_selinux() -> bool:
    """Return whether the kernel has booted with SELinux, which gives the driver the security context of a caller.

    The service manager of an unchanged Android asks for it; without SELinux the driver refuses each call to it. SELinux
    registers its file system only if it is enabled (security/selinux/selinuxfs.c ``init_sel_fs``). Raises OSError.
    """
    with open(_FILE_SYSTEMS, encoding="utf-8") as file:
        return "selinuxfs" in file.read().split()
