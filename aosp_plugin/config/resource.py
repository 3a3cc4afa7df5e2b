"""Keys of a resource: which binder devices it has, how they form devices, and what a container gets with a device."""

# No "from __future__ import annotations": the keys are in the annotations of the structs.
import math
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from aosp_plugin.binder.devices.numa import LAST_NUMA_NODE
from aosp_plugin.binder.devices.numa import parse as parse_numa
from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES, PHONE_PREFIX
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem
from aosp_plugin.config import values
from aosp_plugin.config.keys import Key, keys_of
from aosp_plugin.config.mappings import NamedSets, NumberedSets, Phones, Provision, SharedDevice
from aosp_plugin.config.values import OWN_BINDERFS, AbsolutePath, Api, Isolation, ProvisionedBy, Recreate
from aosp_plugin.framework.device_list import DeviceList
from aosp_plugin.framework.resource_names import is_extended_resource_name

_PATHS = "a list of HOST or HOST:CONTAINER, absolute paths, without options such as :rw"


class Resource(Struct, frozen=True, kw_only=True):
    """The effective configuration of one resource."""

    resource_name: Annotated[
        str,
        Key(
            "Name of the resource that pods request.",
            "example.com/binder",
            "DOMAIN/NAME, for example example.com/binder; kubernetes.io and its subdomains are reserved",
            is_extended_resource_name,
        ),
    ] = "aosp.io/binder"
    api: Annotated[
        Api,
        Key(
            "Kubernetes API by which pods get the devices: device-plugin, dra (Dynamic Resource Allocation, which "
            "requires Kubernetes 1.34).",
            "dra",
            flag=False,
        ),
    ] = Api.DEVICE_PLUGIN
    phones: Annotated[
        Phones | None,
        Key(
            "Phones that the plugin makes: each is a device with a binderfs of its own. Excludes device_dir, "
            "device_prefix, sets and provision.",
            "{count: 120}",
            "a mapping with count and optionally directory; or null",
            flag=False,
            variable=False,
        ),
    ] = None
    device_dir: Annotated[AbsolutePath, Key("Host directory of the binder devices.", "/dev/binderfs")] = "/dev"
    device_prefix: Annotated[
        str,
        Key(
            "Prefix of the names of the binder devices.",
            "binder",
            f"1 to {LONGEST_NAME} printable characters except space, comma and slash",
            lambda value: name_problem(value) is None,
        ),
    ] = "aosp_binder"
    verify: Annotated[
        Verify,
        Key(
            "Check that a binder device must pass to be healthy: file (it exists), char (it is a character device), "
            "binder (it belongs to the binder driver), probe (the driver also answers; requires the right to open it).",
            "binder",
        ),
    ] = Verify.CHAR
    isolation: Annotated[
        Isolation,
        Key(
            "Whether containers see the host's binderfs: shared (its directory, read-only), strict (only their own "
            "binder devices).",
            "strict",
        ),
    ] = Isolation.SHARED
    permissions: Annotated[
        str,
        Key(
            "Device cgroup permissions of binder devices.",
            "rwm",
            "any of r, w and m, each once",
            values.are_permissions,
            flag=False,
        ),
    ] = "rw"
    shared_mounts: Annotated[
        tuple[str, ...],
        Key(
            f"Host directories that every container gets read-only; {OWN_BINDERFS} is the binderfs of its binder "
            "devices.",
            f"[{OWN_BINDERFS}:/dev/binderfs, /opt/phone]",
            f"{_PATHS}; HOST may be {OWN_BINDERFS}",
            values.are_shared_mounts,
            flag=False,
        ),
    ] = (f"{OWN_BINDERFS}:/dev/binderfs",)
    shared_devices: Annotated[
        tuple[str | SharedDevice, ...],
        Key(
            "Other character and block devices that every container gets, if they exist on the host.",
            "[/dev/ashmem, /dev/dma_heap/*, {path: /dev/fuse, required: true}]",
            "a list of HOST, HOST:CONTAINER, patterns of HOST with the wildcards *, ? and [...], and mappings with "
            "path and optionally container_path and required; absolute paths, without options such as :rw",
            values.are_shared_devices,
            flag=False,
        ),
    ] = ("/dev/ashmem",)
    spread_devices: Annotated[
        tuple[AbsolutePath, ...],
        Key(
            "Devices of which each device of the resource has one, selected by its number: its container gets that "
            "one, and it is unhealthy while that one is missing.",
            "[/dev/dri/renderD*]",
            "a list of absolute paths, each once, which may have the wildcards *, ? and [...]",
            values.are_different_paths,
            flag=False,
        ),
    ] = ()
    container_paths: Annotated[
        tuple[AbsolutePath, ...],
        Key(
            "Additional paths of binder devices in a container: the first path leads to its first binder device, the "
            "second path to the second one, and so on.",
            "[/dev/binder, /dev/hwbinder, /dev/vndbinder]",
            "a list of absolute paths, each once",
            values.are_different_paths,
            flag=False,
        ),
    ] = ()
    visible_devices_env: Annotated[
        str,
        Key(
            "Environment variable of containers with the names of their binder devices. If empty, it is not set.",
            "VISIBLE_BINDER_DEVICES",
            "the name of a variable, or empty",
            values.is_name_or_nothing,
            flag=False,
        ),
    ] = "BINDER_VISIBLE_DEVICES"
    path_env: Annotated[
        str,
        Key(
            "PATH of containers. If empty, the PATH of the image.",
            '""',
            "directories separated by colons, or empty",
            flag=False,
        ),
    ] = "/system/bin:/system/xbin"
    device_list: Annotated[
        tuple[DeviceList, ...],
        Key(
            "Strategies by which a container gets its binder devices and their names: envvar (their names in a "
            "variable), volume-mounts (devices and mounts), cdi-cri (CDI names), cdi-annotations (CDI names in "
            "annotations).",
            "[envvar, cdi-cri]",
            f"a list of {', '.join(DeviceList)}, each once, and not {DeviceList.ENVVAR} alone",
            values.are_device_lists,
            flag=False,
        ),
    ] = (DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS)
    sets: Annotated[
        NumberedSets | NamedSets | None,
        Key(
            "Binder devices that form one device, by their numbers or by their names. If null, each one is a device.",
            "{size: 3}",
            "a mapping with size and optionally stride and first, or with names and optionally pattern; or null",
            flag=False,
            variable=False,
        ),
    ] = None
    provision: Annotated[
        Provision | None,
        Key(
            "Binder devices that the plugin creates in a binderfs of its own, instead of those in device_dir.",
            "{count: 360}",
            "a mapping with count and optionally max, directory and first; or null",
            flag=False,
            variable=False,
        ),
    ] = None
    provisioned_by: Annotated[
        ProvisionedBy,
        Key(
            "What mounts and creates the binder devices of phones and provision: plugin (serve, whenever they are "
            "missing), provisioner (aosp-plugin provisioner, a privileged process that runs beside serve and mounts "
            "phones on its request), command (aosp-plugin provision, which runs before serve, for example in an init "
            "container). With the last two, serve changes nothing on the host itself, and requires no privilege.",
            "provisioner",
            flag=False,
        ),
    ] = ProvisionedBy.PLUGIN
    numa: Annotated[
        Mapping[Annotated[str, Meta(pattern=values.NUMA_RANGE)], Annotated[int, Meta(ge=0, le=LAST_NUMA_NODE)]],
        Key(
            "NUMA nodes of devices, by their numbers.",
            "{0-179: 0, 180-359: 1}",
            f"a mapping of numbers, or ranges such as 0-179, to NUMA nodes from 0 to {LAST_NUMA_NODE}; ranges must not "
            "overlap",
            parse_numa,
            flag=False,
            variable=False,
        ),
    ] = {}
    recreate: Annotated[
        Recreate,
        Key(
            "When the binder devices of a container are recreated: never, on-start (before the container starts; with "
            "api: dra, before a claim is prepared).",
            "on-start",
            flag=False,
        ),
    ] = Recreate.NEVER
    replicas: Annotated[
        int,
        Meta(ge=1, le=1000),
        Key("Number of containers that can have the same device.", "2", flag=False),
    ] = 1
    missing_device_ttl: Annotated[
        float,
        Key(
            "Seconds until a missing binder device is removed from the list, and a replaced one becomes healthy.",
            "60",
            "a number of seconds, 0 or more",
            lambda value: 0 <= value < math.inf,
            flag=False,
        ),
    ] = 300.0

    @property
    def scan_directory(self) -> str:
        """The host directory in which the resource's binder devices are found."""
        return scan_directory(self.phones, self.provision, self.device_dir)

    @property
    def scanned_files(self) -> str:
        """The files that are binder devices of the resource, and the keys that determine them, for messages."""
        if self.phones is not None:
            return f"{self.scan_directory}/{PHONE_PREFIX}* (phones.directory)"
        key = "device_dir" if self.provision is None else "provision.directory"
        if isinstance(self.sets, NamedSets):
            return f"{self.scan_directory}/{self.sets.pattern} ({key}, sets.pattern)"
        return f"{self.scan_directory}/{self.device_prefix}* ({key}, device_prefix)"


def scan_directory(phones: Phones | None, provision: Provision | None, device_dir: str) -> str:
    """Return the host directory in which binder devices are found, according to the values of these keys."""
    if phones is not None:
        return phones.directory
    return device_dir if provision is None else provision.directory


RESOURCE_KEYS = keys_of(Resource)
"""In the order of help and documentation."""

PHONE_DEFAULTS: Mapping[str, Any] = {
    "resource_name": "aosp.io/phone",
    "verify": Verify.BINDER,
    "container_paths": tuple(f"/dev/{name}" for name in PHONE_BINDER_DEVICES),
    "recreate": Recreate.ON_START,
}
"""The defaults that differ if ``phones`` is set, so that ``phones: {count: 120}`` is a whole configuration."""

COMMAND_DEFAULTS: Mapping[str, Any] = {"recreate": Recreate.NEVER}
"""The defaults that differ from these if ``provisioned_by`` is command: the plugin mounts no fresh binderfs."""
