"""What single values may be, and what those that are text mean to others.

Functions of their inputs: nothing here knows of keys, files or variables.
"""

from __future__ import annotations

import enum
import os.path
import re
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from aosp_plugin.binder.devices import numa, sets
from aosp_plugin.binder.devices.edits import OWN_BINDERFS, SharedPath
from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.framework.device_list import DeviceList

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AbsolutePath = Annotated[str, Meta(pattern="^/")]

LARGEST_NUMBER = 999_999_999
"""Of a node's name; more digits than the 2^20 minors of a kernel need, and few enough for any reader of numbers."""

NodeNumber = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]

NUMA_RANGE = "^[0-9]{1,9}(-[0-9]{1,9})?$"


class Recreate(enum.StrEnum):
    """When a container's nodes are renewed, so that nothing is left of whoever had them before."""

    NEVER = "never"
    ON_START = "on-start"
    """Before the container starts."""


def shared_path(text: str) -> SharedPath:
    """Read HOST or HOST:CONTAINER. Raises ValueError."""
    host, _, container = text.partition(":")
    container = container or host
    if not container.startswith("/") or not (host.startswith("/") or host == OWN_BINDERFS):
        raise ValueError(text)
    return SharedPath(host, container)


def is_numa(ranges: Mapping[str, int]) -> bool:
    """Say whether each is a number or a range, and none in two of them. Raises ValueError where not."""
    return len(numa.parse(ranges).ranges) == len(ranges)


def is_name_or_nothing(value: str) -> bool:
    """Say whether it could be an environment variable, or is empty."""
    return re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", value) is not None


def are_permissions(value: str) -> bool:
    """Say whether the device cgroup takes it: r, w and m, each once."""
    return re.fullmatch(r"[rwm]{1,3}", value) is not None and len(set(value)) == len(value)


def are_shared_mounts(values: Iterable[str]) -> bool:
    """Say whether each is HOST or HOST:CONTAINER. Raises ValueError where not."""
    return all(shared_path(text) for text in values)


def are_shared_devices(values: Iterable[str]) -> bool:
    """Say whether each is HOST or HOST:CONTAINER, and none the own binderfs: no device. Raises ValueError where not."""
    return all(shared_path(text).host_path != OWN_BINDERFS for text in values)


def are_container_paths(values: Sequence[str]) -> bool:
    """Say whether each is another place, however it is spelled."""
    return len({normalised(path) for path in values}) == len(values)


def are_device_lists(values: Sequence[DeviceList]) -> bool:
    """Say whether each is there once, and one of them brings the nodes and not their names alone."""
    return len(set(values)) == len(values) and not {*values} <= {DeviceList.ENVVAR}


def are_node_names(values: Sequence[str]) -> bool:
    """Say whether each can be a node's name, and is there once."""
    return len(set(values)) == len(values) and all(
        name_problem(name) is None and name != CONTROL_NAME for name in values
    )


def is_set_pattern(pattern: str) -> bool:
    """Say whether it makes a file name of {set} and {name}, or a directory of {set} and in it a file of {name}."""
    return sets.pattern_problem(pattern, ["n"]) is None


def is_printable(value: Any) -> bool:
    """Say whether the text, or all of the list's, can be printed, logged and sent to the kubelet as it is."""
    texts = value if isinstance(value, tuple) else (value,)
    return all(text.isprintable() for text in texts if isinstance(text, str))


def normalised(path: str) -> str:
    """Return an absolute path in the one spelling that paths to the same place have, links aside."""
    # POSIX lets two slashes at the beginning mean something else; Linux does not.
    return "/" + os.path.normpath(path).lstrip("/")
