"""The keys of one resource: which nodes it has, how they make devices, and what a container gets with them."""

# No "from __future__ import annotations": the annotations of the structs are what the keys are made of.
import math
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from aosp_plugin.binder.devices.edits import OWN_BINDERFS, Isolation
from aosp_plugin.binder.devices.numa import LAST_NUMA_NODE
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem
from aosp_plugin.binder.driver.binderfs import ALL_MINORS
from aosp_plugin.config import values
from aosp_plugin.config.keys import Key, keys_of
from aosp_plugin.config.values import LARGEST_NUMBER, AbsolutePath, NodeNumber, Recreate
from aosp_plugin.framework.device_list import DeviceList
from aosp_plugin.framework.resource_names import is_extended_resource_name

_PATHS = "a list of HOST or HOST:CONTAINER, absolute paths"
_NODE_NUMBER = f"a number from 0 to {LARGEST_NUMBER}"
_NODE_COUNT = f"a number from 1 to {ALL_MINORS}"

_NodeCount = Annotated[int, Meta(ge=1, le=ALL_MINORS)]


class NumberedSets(Struct, frozen=True, kw_only=True):
    """Sets of nodes that belong together by their numbers."""

    size: Annotated[int, Meta(ge=1, le=64), Key("How many nodes a set has.", "a number from 1 to 64")]
    stride: Annotated[
        Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None,
        Key(
            "From a node's number to that of the next one of its set; null: a set's nodes are neighbours.",
            f"a number from 1 to {LARGEST_NUMBER}, or null",
        ),
    ] = None
    first: Annotated[NodeNumber, Key("Number of the first set's first node.", _NODE_NUMBER)] = 0


class NamedSets(Struct, frozen=True, kw_only=True):
    """Sets of nodes that belong together by their names."""

    names: Annotated[
        tuple[str, ...],
        Meta(min_length=1),
        Key(
            "The nodes of a set, in the order in which a container gets them.",
            "a list of names of nodes, each once",
            values.are_node_names,
        ),
    ]
    pattern: Annotated[
        str,
        Key(
            "What a node is called below the device directory.",
            "a file with {set} and {name}, or a directory with {set}, a slash and a file with {name}; each once",
            values.is_set_pattern,
        ),
    ] = "{set}/{name}"


class Provision(Struct, frozen=True, kw_only=True):
    """The binder devices that the plugin creates in a binderfs that it mounts."""

    count: Annotated[_NodeCount, Key("Number of binder devices to create.", _NODE_COUNT)]
    max: Annotated[
        _NodeCount | None,
        Key("Mount option max= of the binderfs; null: the kernel's default.", f"{_NODE_COUNT}, or null"),
    ] = None
    directory: Annotated[AbsolutePath, Key("Host directory that the binderfs is mounted on.", "an absolute path")] = (
        "/run/aosp-binderfs/devices"
    )
    first: Annotated[NodeNumber, Key("Number of the first binder device.", _NODE_NUMBER)] = 0


class Resource(Struct, frozen=True, kw_only=True):
    """The effective configuration of one resource."""

    resource_name: Annotated[
        str,
        Key(
            "What pods ask for.",
            "a domain, a slash and a name, as in example.com/binder",
            is_extended_resource_name,
        ),
    ] = "aosp.io/binder"
    device_dir: Annotated[AbsolutePath, Key("Host directory of the nodes.", "an absolute path")] = "/dev"
    device_prefix: Annotated[
        str,
        Key(
            "What the nodes' names begin with.",
            f"1 to {LONGEST_NAME} printable characters but space, comma and /",
            lambda value: name_problem(value) is None,
        ),
    ] = "aosp_binder"
    verify: Annotated[Verify, Key("What a node must show to be Healthy.", ", ".join(Verify))] = Verify.CHAR
    isolation: Annotated[Isolation, Key("What a container sees of the binderfs.", ", ".join(Isolation))] = (
        Isolation.SHARED
    )
    permissions: Annotated[
        str,
        Key("Device cgroup permissions of a node.", "any of r, w and m, each once", values.are_permissions, flag=False),
    ] = "rw"
    shared_mounts: Annotated[
        tuple[str, ...],
        Key(
            f"Directories that every container gets read-only; {OWN_BINDERFS} is that of its own nodes.",
            f"{_PATHS}; HOST may be {OWN_BINDERFS}",
            values.are_shared_mounts,
            flag=False,
        ),
    ] = (f"{OWN_BINDERFS}:/dev/binderfs",)
    shared_devices: Annotated[
        tuple[str, ...],
        Key(
            "Devices that every container gets, where the host has them.", _PATHS, values.are_shared_devices, flag=False
        ),
    ] = ("/dev/ashmem",)
    container_paths: Annotated[
        tuple[AbsolutePath, ...],
        Key(
            "Where else a container finds its nodes, the first one at the first path.",
            "a list of absolute paths, each once",
            values.are_container_paths,
            flag=False,
        ),
    ] = ()
    visible_devices_env: Annotated[
        str,
        Key(
            "Variable with the names of a container's nodes; empty: none.",
            "a variable's name, or empty",
            values.is_name_or_nothing,
            flag=False,
        ),
    ] = "BINDER_VISIBLE_DEVICES"
    path_env: Annotated[
        str, Key("PATH of a container; empty: the image's.", "directories with : between them, or empty", flag=False)
    ] = "/system/bin:/system/xbin"
    device_list: Annotated[
        tuple[DeviceList, ...],
        Key(
            "Ways in which a container gets its nodes and learns which they are.",
            f"a list of {', '.join(DeviceList)}, each once, with more than {DeviceList.ENVVAR}",
            values.are_device_lists,
            flag=False,
        ),
    ] = (DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS)
    sets: Annotated[
        NumberedSets | NamedSets | None,
        Key(
            "Nodes that make one device together; null: each node is a device.",
            "a mapping, either with size and perhaps stride and first, or with names and perhaps pattern; or null",
            flag=False,
            variable=False,
        ),
    ] = None
    provision: Annotated[
        Provision | None,
        Key(
            "Binder devices that the plugin creates in a binderfs of its own, instead of those in device_dir.",
            "a mapping with count and optionally max, directory and first; or null",
            flag=False,
            variable=False,
        ),
    ] = None
    numa: Annotated[
        Mapping[Annotated[str, Meta(pattern=values.NUMA_RANGE)], Annotated[int, Meta(ge=0, le=LAST_NUMA_NODE)]],
        Key(
            "NUMA node of the devices with these numbers.",
            "a mapping of numbers, or ranges such as 0-179, none of which has a number in common with another, to NUMA"
            f" nodes from 0 to {LAST_NUMA_NODE}",
            values.is_numa,
            flag=False,
            variable=False,
        ),
    ] = {}
    recreate: Annotated[Recreate, Key("When a container's nodes are renewed.", ", ".join(Recreate), flag=False)] = (
        Recreate.NEVER
    )
    replicas: Annotated[
        int,
        Meta(ge=1, le=1000),
        Key("How many containers may have the same device.", "a number from 1 to 1000", flag=False),
    ] = 1
    missing_device_ttl: Annotated[
        float,
        Key(
            "Seconds until a missing node is dropped, and a replaced one taken for good.",
            "a number, 0 or more",
            lambda value: 0 <= value < math.inf,
            flag=False,
        ),
    ] = 300.0

    @property
    def scan_directory(self) -> str:
        """The host directory in which the resource's binder devices are found."""
        return self.device_dir if self.provision is None else self.provision.directory


RESOURCE_KEYS = keys_of(Resource)
"""In the order in which people read them."""
