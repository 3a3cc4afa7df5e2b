"""The types of values: choices, limits, and the words that errors have for what is allowed."""

from __future__ import annotations

import enum
import math
import os.path
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.devices.numa import LAST_NUMA_NODE
from aosp_plugin.binder.devices.numa import parse as parse_numa
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.config.convert import Limit
from aosp_plugin.framework.devices import DeviceList, is_extended_resource_name
from aosp_plugin.framework.service.address import listen_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OWN_BINDERFS = "binderfs"
"""Host side of a shared mount: the binderfs of the container's own binder devices."""

LARGEST_NUMBER = 999_999_999
"""The largest number in the name of a binder device: more than the 2^20 minor numbers of a kernel."""

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"
"""RFC 1123, section 2.1; and underscores, which names in container networks can have."""

_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_TAINT_NAME = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"


class Api(enum.StrEnum):
    """How the devices of a resource reach the scheduler and the kubelet."""

    DEVICE_PLUGIN = "device-plugin"
    """The device plugin API, and requests of the extended resource."""
    DRA = "dra"
    """Dynamic Resource Allocation: ResourceSlices and ResourceClaims."""


class Isolation(enum.StrEnum):
    """Which binder devices of the host a container can list."""

    SHARED = "shared"
    """All in its binderfs, read-only: those of other containers cannot be opened, unlinked or renamed."""
    STRICT = "strict"
    """Its own."""


class Recreate(enum.StrEnum):
    """When the binder devices of a container are recreated, so that they have no state of an earlier container."""

    NEVER = "never"
    ON_START = "on-start"
    """Before the container starts."""


class ProvisionedBy(enum.StrEnum):
    """Who makes what ``phones`` and ``provision`` order."""

    PLUGIN = "plugin"
    """``aosp-plugin serve``, whenever something is missing."""
    COMMAND = "command"
    """``aosp-plugin provision``, which ends when it has done so."""
    PROVISIONER = "provisioner"
    """``aosp-plugin provisioner``, a privileged process that mounts phones on request of the plugin."""


def shared_path(text: str) -> tuple[str, str]:
    """Parse HOST or HOST:CONTAINER into the paths of host and container. Raises ValueError.

    A third part, such as the ``:rw`` of Docker, is an error: shared mounts are read-only, and paths with a colon cannot
    be configured.
    """
    host, *others = text.split(":")
    container = others[0] if others else host
    if len(others) > 1 or not container.startswith("/") or not (host.startswith("/") or host == OWN_BINDERFS):
        raise ValueError(text)
    return host, container


def _are_host_names(values: Iterable[str]) -> bool:
    """Return whether each text is a host name of lower- or uppercase labels, without port, wildcard or final dot."""
    return all(re.fullmatch(_HOST_NAME, name) for name in values)


def _is_link(value: str) -> bool:
    """Return whether the text is an http or https URL without fragment, or empty. May raise ValueError instead."""
    if not value:
        return True
    import urllib.parse  # noqa: PLC0415 - few configurations have a link

    parts = urllib.parse.urlsplit(value)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.fragment


def _is_startup_taint(key: str) -> bool:
    """Return whether the text is empty, or a key of a taint that Kubernetes does not add and remove itself."""
    domain, slash, name = key.rpartition("/")
    return not key or (
        re.fullmatch(_TAINT_NAME, name) is not None
        and (not slash or re.fullmatch(_SUBDOMAIN, domain) is not None)
        and domain not in {"node.kubernetes.io", "node.cloudprovider.kubernetes.io", "node-role.kubernetes.io"}
    )


def _is_feature_file(path: str) -> bool:
    """Return whether the path is empty, or Node Feature Discovery reads the file: in features.d, and not hidden.

    The file is replaced, so that it must not be one of another program.
    """
    return re.fullmatch(r"(/(.*/)?features\.d/+[^./][^/]*)?", path) is not None and ".." not in path


def _are_permissions(value: str) -> bool:
    """Return whether these are device cgroup permissions: r, w and m, each at most once."""
    return re.fullmatch(r"[rwm]{1,3}", value) is not None and len(set(value)) == len(value)


def _are_shared_mounts(values: Iterable[str]) -> bool:
    """Return whether each text is HOST or HOST:CONTAINER. May raise ValueError instead."""
    return all(shared_path(text) for text in values)


def are_shared_devices(values: Iterable[object]) -> bool:
    """Return whether each text is HOST or HOST:CONTAINER, and none is a binderfs. May raise ValueError instead."""
    return all(shared_path(item)[0] != OWN_BINDERFS for item in values if isinstance(item, str))


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
PathOrEmpty = Annotated[str, Meta(pattern="^(/|$)"), Limit("an absolute path, or empty")]
Paths = Annotated[tuple[AbsolutePath, ...], Limit("a list of absolute paths, each once", are_different_paths)]
PathPatterns = Annotated[
    tuple[AbsolutePath, ...],
    Limit("a list of absolute paths, each once, which may have the wildcards *, ? and [...]", are_different_paths),
]
SharedMounts = Annotated[
    tuple[str, ...],
    Limit(
        f"a list of HOST or HOST:CONTAINER, absolute paths, without options such as :rw; HOST may be {OWN_BINDERFS}",
        _are_shared_mounts,
    ),
]
FeatureFile = Annotated[
    str,
    Limit(
        "an absolute path of a file in a directory features.d, whose name does not begin with a dot, or empty",
        _is_feature_file,
    ),
]
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
Permissions = Annotated[str, Limit("any of r, w and m, each once", _are_permissions)]
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
VariableName = Annotated[str, Meta(pattern="^([A-Za-z_][A-Za-z0-9_]*)?$"), Limit("the name of a variable, or empty")]
TaintKey = Annotated[str, Limit("the key of a taint that Kubernetes does not manage, or empty", _is_startup_taint)]
Address = Annotated[str, Limit("HOST:PORT, [IPv6]:PORT, or empty", _is_address)]
AddressOrNull = Annotated[str | None, Limit("HOST:PORT, [IPv6]:PORT, empty, or null", _is_address)]
HostNames = Annotated[tuple[str, ...], Limit("a list of host names without port", _are_host_names)]
Link = Annotated[str, Limit("an http or https URL without fragment, or empty", _is_link)]
Seconds = Annotated[float, Limit("a number of seconds, 0 or more", lambda value: 0 <= value < math.inf)]
Interval = Annotated[
    float, Limit("0, or a number of seconds from 1 on", lambda value: value == 0 or 1 <= value < math.inf)
]
