"""The keys of devices of the host that containers get besides binder devices: shared, spread and sliced ones."""

# No "from __future__ import annotations": the keys are in the annotations of the structs.
from typing import Annotated

from msgspec import Meta, Struct

from aosp_plugin.binder.driver.binderfs import ALL_MINORS
from aosp_plugin.config import values
from aosp_plugin.config.convert import Key

_DeviceCount = Annotated[int, Meta(ge=1, le=ALL_MINORS)]


class SharedDevice(Struct, frozen=True, kw_only=True):
    """A device of the host, or all that match a pattern, that every container gets."""

    path: Annotated[values.PathPattern, Key("/dev/fuse")]
    """Path on the host, or a pattern."""
    container_path: Annotated[values.AbsolutePath | None, Key("/dev/ashmem")] = None
    """Path in the container. If null, the path on the host; null is required for a pattern."""
    required: Annotated[bool, Key("true")] = False
    """Whether the devices of the resource are unhealthy while it, or any match of a pattern, is missing."""


def shared_device(item: str | SharedDevice) -> SharedDevice:
    """Return an item of ``shared_devices``, which may be text, as a mapping."""
    if isinstance(item, SharedDevice):
        return item
    host, container = values.shared_path(item)
    return SharedDevice(path=host, container_path=None if container == host else container)


class SpreadDevice(Struct, frozen=True, kw_only=True):
    """A device of the host, or all that match a pattern, of which each device of the resource has one."""

    path: Annotated[values.PathPattern, Key("/dev/dri/renderD*")]
    """Path on the host, or a pattern."""
    container_path: Annotated[values.AbsolutePath | None, Key("/dev/dri/renderD128")] = None
    """Path in each container, whichever device it has. If null, the path on the host."""
    env: Annotated[values.VariableName, Key("GPU_NODE")] = ""
    """Environment variable with the path of the device in the container. If empty, it is not set."""
    per_device: Annotated[_DeviceCount | None, Key("30")] = None
    """Maximum number of devices of the resource that share one; further ones are unhealthy. If null, there is no
    limit."""


def spread_device(item: str | SpreadDevice) -> SpreadDevice:
    """Return an item of ``spread_devices``, which may be text, as a mapping."""
    return item if isinstance(item, SpreadDevice) else SpreadDevice(path=item)


class SliceDevices(Struct, frozen=True, kw_only=True):
    """Numbered devices of the host, of which each device of the resource has several of its own."""

    path: Annotated[values.NumberedPath, Key("/dev/loop*")]
    """Path on the host, in which * stands for the number of the device."""
    count: Annotated[int, Meta(ge=1, le=1024), Key("40")]
    """Number of these devices for each device of the resource."""

    @property
    def pattern(self) -> str:
        """The pattern of the paths, which other files match as well: * stands for more than digits."""
        return values.normalised(self.path).replace("*", "[0-9]*")

    def of(self, number: int) -> list[str]:
        """Return the paths of the slice of device ``number`` of the resource."""
        before, _, after = values.normalised(self.path).partition("*")
        return [f"{before}{each}{after}" for each in range(number * self.count, (number + 1) * self.count)]
