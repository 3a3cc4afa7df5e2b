"""Values that are a mapping with keys of its own: device sets, provisioned binder devices, phones, shared devices."""

# No "from __future__ import annotations": the keys are in the annotations of the structs.
from typing import Annotated

from msgspec import Meta, Struct

from aosp_plugin.binder.devices.phones import MINORS_PER_PHONE
from aosp_plugin.binder.driver.binderfs import ALL_MINORS
from aosp_plugin.config import values
from aosp_plugin.config.keys import Key
from aosp_plugin.config.values import LARGEST_NUMBER, AbsolutePath, DeviceNumber

_DeviceCount = Annotated[int, Meta(ge=1, le=ALL_MINORS)]


class NumberedSets(Struct, frozen=True, kw_only=True):
    """Sets of binder devices that belong together by their numbers."""

    size: Annotated[int, Meta(ge=1, le=64), Key("Number of binder devices in a device set.", "3")]
    stride: Annotated[
        Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None,
        Key(
            "Difference between the numbers of successive binder devices of a device set, and the number of device "
            "sets. If null, the numbers of a device set are consecutive.",
            "120",
        ),
    ] = None
    first: Annotated[DeviceNumber, Key("Number of the first binder device of the first device set.", "1")] = 0


class NamedSets(Struct, frozen=True, kw_only=True):
    """Sets of binder devices that belong together by their names."""

    names: Annotated[
        tuple[str, ...],
        Meta(min_length=1),
        Key(
            "Names of the binder devices of a device set, in the order in which a container gets them.",
            "[binder, hwbinder, vndbinder]",
            "a list of device names, each once",
            values.are_device_names,
        ),
    ]
    pattern: Annotated[
        str,
        Key(
            "Path of a binder device below the device directory.",
            '"{set}-{name}"',
            "a file name with {set} and {name}, or a directory name with {set}, a slash and a file name with {name}; "
            "each once",
            values.is_set_pattern,
        ),
    ] = "{set}/{name}"


class Provision(Struct, frozen=True, kw_only=True):
    """The binder devices that the plugin creates in a binderfs that it mounts."""

    count: Annotated[_DeviceCount, Key("Number of binder devices to create.", "360")]
    max: Annotated[
        _DeviceCount | None,
        Key("Mount option max= of the binderfs. If null, the kernel's limit.", "4096"),
    ] = None
    directory: Annotated[
        AbsolutePath,
        Key("Host directory that the binderfs is mounted on.", "/run/aosp-binderfs/phones"),
    ] = "/run/aosp-binderfs/devices"
    first: Annotated[DeviceNumber, Key("Number of the first binder device.", "1")] = 0


class Phones(Struct, frozen=True, kw_only=True):
    """The phones that the plugin makes, each with a binderfs of its own."""

    count: Annotated[
        Annotated[int, Meta(ge=1, le=ALL_MINORS // MINORS_PER_PHONE)],
        Key("Number of phones.", "120"),
    ]
    directory: Annotated[
        AbsolutePath,
        Key("Host directory of the binderfs mounts.", "/run/aosp-binderfs/tenants"),
    ] = "/run/aosp-binderfs/phones"


class SharedDevice(Struct, frozen=True, kw_only=True):
    """A device of the host, or all that match a pattern, that every container gets."""

    path: Annotated[
        AbsolutePath,
        Key(
            "Path on the host, or a pattern.",
            "/dev/fuse",
            "an absolute path, which may have the wildcards *, ? and [...]",
        ),
    ]
    container_path: Annotated[
        AbsolutePath | None,
        Key("Path in the container. If null, the path on the host; a pattern has no other one.", "/dev/ashmem"),
    ] = None
    required: Annotated[
        bool,
        Key(
            "Whether the devices of the resource are unhealthy while it, or any match of a pattern, is missing.", "true"
        ),
    ] = False


def shared_device(item: str | SharedDevice) -> SharedDevice:
    """Return an item of ``shared_devices``, which may be text, as a mapping. Raises ValueError."""
    if isinstance(item, SharedDevice):
        return item
    host, container = values.shared_path(item)
    return SharedDevice(path=host, container_path=None if container == host else container)
