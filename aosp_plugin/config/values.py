"""The types of values: choices, limits, and the words that errors have for what is allowed."""

import enum
import math
import os.path
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.devices.preference import LAST_NUMA_NODE, parse_numa
from aosp_plugin.binder.devices.sets import LONGEST_NAME, name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.config.convert import Limit
from aosp_plugin.framework.backend import DeviceList, is_extended_resource_name
from aosp_plugin.framework.service.address import listen_address

_PLACEHOLDER = re.compile(r"\{(id|number)\}")

OWN_BINDERFS = "binderfs"
"""Host side of a shared mount: the binderfs of the container's own binder devices."""

LARGEST_NUMBER = 999_999_999
"""The largest number in the name of a binder device: more than the 2^20 minor numbers of a kernel."""

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = rf"^{_LABEL}(\.{_LABEL})*$"
"""RFC 1123, section 2.1; and underscores, which names in container networks can have."""

_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
_TAINT_KEY = rf"^(({_SUBDOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?)?$"

_KUBERNETES_TAINTS = {"node.kubernetes.io", "node.cloudprovider.kubernetes.io", "node-role.kubernetes.io"}
"""Domains of the taints that Kubernetes adds and removes itself."""


class Api(enum.StrEnum):
    """How the devices of a resource reach the scheduler and the kubelet."""

    DEVICE_PLUGIN = "device-plugin"
    """The device plugin API, and requests of the extended resource."""
    DRA = "dra"
    """Dynamic Resource Allocation: ResourceSlices and ResourceClaims."""


class Isolation(enum.StrEnum):
    """Which binder devices of the host a container can list."""

    SHARED = "shared"
    """All in its binderfs, read-only. It cannot open, unlink or rename those of other containers."""
    STRICT = "strict"
    """Only its own."""


class Recreate(enum.StrEnum):
    """When the binder devices of a container are recreated, so that they have no state of an earlier container."""

    NEVER = "never"
    ON_START = "on-start"
    """Before the container starts."""


class ProvisionedBy(enum.StrEnum):
    """Who mounts the phones."""

    PLUGIN = "plugin"
    """``aosp-plugin serve``, whenever something is missing."""
    COMMAND = "command"
    """``aosp-plugin provision``, which ends when it has done so."""
    PROVISIONER = "provisioner"
    """``aosp-plugin provisioner``, a privileged process that mounts phones on request of the plugin."""


def shared_path(text: str) -> tuple[str, str]:
    """Return the paths of host and container in a value that is allowed: HOST or HOST:CONTAINER."""
    host, _, container = text.partition(":")
    return host, container or host


def has_placeholder(path: str) -> bool:
    """Return whether a path differs for each device: it has ``{id}`` or ``{number}``."""
    return _PLACEHOLDER.search(path) is not None


def placeholder_pattern(path: str) -> str:
    """Return the pattern that a path with placeholders has for all devices."""
    return _PLACEHOLDER.sub("*", path)


def filled(path: str, device_id: str, number: int) -> str:
    """Return a path with placeholders as it is for one device."""
    return _PLACEHOLDER.sub(lambda match: device_id if match[0] == "{id}" else str(number), path)


def _have_placeholders(values: Sequence[str]) -> bool:
    """Return whether all braces are placeholders in HOST, below its first directory, and none is in CONTAINER."""
    for host, _, container in (value.partition(":") for value in values):
        fixed = "/".join(host.split("/", 2)[:2]) + container
        if re.search("[{}]", f"{fixed}{_PLACEHOLDER.sub('', host)}") or (
            has_placeholder(host) and ".." in host.split("/")
        ):
            return False
    return True


def are_different_paths(values: Sequence[str]) -> bool:
    """Return whether all paths differ after normalization."""
    return len({normalised(path) for path in values}) == len(values)


def _are_device_lists(values: Sequence[DeviceList]) -> bool:
    """Return whether each strategy occurs once, and one of them brings the binder devices, not only their names."""
    return len(set(values)) == len(values) and not {*values} <= {DeviceList.ENVVAR}


def _are_device_names(values: Sequence[str]) -> bool:
    """Return whether each text is the name of a binder device, and occurs once."""
    return len(set(values)) == len(values) and all(
        name_problem(name) is None and name != CONTROL_NAME for name in values
    )


def is_set_pattern(pattern: str) -> bool:
    """Return whether the pattern is a file name with {set} and {name}, or {set} in a directory and {name} in a file."""
    return sets.pattern_problem(pattern, ["n"]) is None


def normalised(path: str) -> str:
    """Return an absolute path in a unique spelling. Links are not resolved."""
    # POSIX gives two leading slashes a meaning of their own; Linux does not.
    return "/" + os.path.normpath(path).lstrip("/")


def _is_address(value: str | None) -> bool:
    return not value or listen_address(value) is not None


LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

AbsolutePath = Annotated[str, Meta(pattern="^/")]
PathPattern = Annotated[AbsolutePath, Limit("an absolute path, which may have the wildcards *, ? and [...]")]
NumberedPath = Annotated[
    str, Meta(pattern=r"^/[^*?[\]]*\*[^*?[\]]*$"), Limit("an absolute path with one *, which stands for a number")
]
PathOrEmpty = Annotated[str, Meta(pattern="^(/|$)"), Limit("an absolute path, or empty")]
Paths = Annotated[tuple[AbsolutePath, ...], Limit("a list of absolute paths, each once", are_different_paths)]
# A third part, such as the :rw of Docker, is an error: shared mounts are read-only, and paths have no colon.
SharedMounts = Annotated[
    tuple[Annotated[str, Meta(pattern=f"^(/[^:]*|(/[^:]*|{OWN_BINDERFS}):/[^:]*)$")], ...],
    Limit(
        f"a list of HOST or HOST:CONTAINER, absolute paths, without options such as :rw; HOST may be {OWN_BINDERFS}, "
        "or have {id} or {number} of the device, but not in its first part",
        _have_placeholders,
    ),
]
SharedDevicePath = Annotated[str, Meta(pattern="^/[^:]*(:/[^:]*)?$")]
SearchPath = Annotated[str, Limit("directories separated by colons, or empty")]

DeviceNumber = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
NumaNodes = Annotated[
    Mapping[
        Annotated[str, Meta(pattern="^[0-9]{1,9}(-[0-9]{1,9})?$")],
        Annotated[int, Meta(ge=0, le=LAST_NUMA_NODE)],
    ],
    Limit(
        f"a mapping of numbers, or ranges such as 0-179, to NUMA nodes from 0 to {LAST_NUMA_NODE}; ranges must not "
        "overlap",
        parse_numa,
    ),
]
"""By the numbers of devices, or their ranges."""
DevicePrefix = Annotated[
    str,
    Limit(
        f"1 to {LONGEST_NAME} printable characters except space, comma and slash",
        lambda value: name_problem(value) is None,
    ),
]
DeviceNames = Annotated[
    tuple[str, ...], Meta(min_length=1), Limit("a list of device names, each once", _are_device_names)
]
SetPattern = Annotated[
    str,
    Limit(
        "a file name with {set} and {name}, or a directory name with {set}, a slash and a file name with {name}; each "
        "once",
        is_set_pattern,
    ),
]
DeviceLists = Annotated[
    tuple[DeviceList, ...],
    Limit(f"a list of {', '.join(DeviceList)}, each once, and not {DeviceList.ENVVAR} alone", _are_device_lists),
]
ResourceName = Annotated[
    str,
    Limit(
        "DOMAIN/NAME, for example example.com/binder; kubernetes.io and its subdomains are reserved",
        is_extended_resource_name,
    ),
]
VariableName = Annotated[
    str,
    Meta(pattern="^([A-Za-z_][A-Za-z0-9_]*)?$"),
    Limit(
        "the name of a variable, other than PATH and LD_*, or empty",
        lambda name: name != "PATH" and not name.startswith("LD_"),
    ),
]
TaintKey = Annotated[
    str,
    Meta(pattern=_TAINT_KEY),
    Limit(
        "the key of a taint that Kubernetes does not manage, or empty",
        lambda key: key.rpartition("/")[0] not in _KUBERNETES_TAINTS,
    ),
]
Address = Annotated[str, Limit("HOST:PORT, [IPv6]:PORT, or empty", _is_address)]
AddressOrNull = Annotated[str | None, Limit("HOST:PORT, [IPv6]:PORT, empty, or null", _is_address)]
HostNames = Annotated[
    tuple[Annotated[str, Meta(max_length=253, pattern=_HOST_NAME)], ...], Limit("a list of host names without port")
]
Link = Annotated[
    str,
    Meta(pattern=r"^(https?://(\[[0-9A-Fa-f:.]+\]|[^\[\]/?#]+)[^#]*)?$"),
    Limit("an http or https URL without fragment, or empty"),
]
Seconds = Annotated[float, Meta(ge=0), Limit("a number of seconds, 0 or more", math.isfinite)]
