"""Types, validators and parsers of single values."""

from __future__ import annotations

import enum
import os.path
import re
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from aosp_plugin.binder.devices import sets
from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.framework.device_list import DeviceList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AbsolutePath = Annotated[str, Meta(pattern="^/")]

LARGEST_NUMBER = 999_999_999
"""The largest number in the name of a binder device: more than the 2^20 minor numbers of a kernel."""

DeviceNumber = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]

NUMA_RANGE = "^[0-9]{1,9}(-[0-9]{1,9})?$"

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"
"""RFC 1123, section 2.1; and underscores, which names in container networks can have."""


_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_TAINT_NAME = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

OWN_BINDERFS = "binderfs"
"""Host side of a shared mount: the binderfs of the container's own binder devices."""


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


def are_host_names(values: Iterable[str]) -> bool:
    """Return whether each text is a host name of lower- or uppercase labels, without port, wildcard or final dot."""
    return all(re.fullmatch(_HOST_NAME, name) for name in values)


def is_link(value: str) -> bool:
    """Return whether the text is an http or https URL without fragment, or empty. May raise ValueError instead."""
    if not value:
        return True
    import urllib.parse  # noqa: PLC0415 - few configurations have a link

    parts = urllib.parse.urlsplit(value)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.fragment


def is_startup_taint(key: str) -> bool:
    """Return whether the text is a key of a taint, and not of one that Kubernetes adds and removes itself."""
    domain, slash, name = key.rpartition("/")
    return (
        re.fullmatch(_TAINT_NAME, name) is not None
        and (not slash or re.fullmatch(_SUBDOMAIN, domain) is not None)
        and domain not in {"node.kubernetes.io", "node.cloudprovider.kubernetes.io", "node-role.kubernetes.io"}
    )


def is_feature_file(path: str) -> bool:
    """Return whether Node Feature Discovery reads this file: one that is not hidden, in its directory features.d.

    The file is replaced, so that it must not be one of another program.
    """
    return path.startswith("/") and ".." not in path and re.search(r"/features\.d/+[^./][^/]*$", path) is not None


def is_name_or_nothing(value: str) -> bool:
    """Return whether the text is the name of an environment variable, or empty."""
    return re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", value) is not None


def are_permissions(value: str) -> bool:
    """Return whether these are device cgroup permissions: r, w and m, each at most once."""
    return re.fullmatch(r"[rwm]{1,3}", value) is not None and len(set(value)) == len(value)


def are_shared_mounts(values: Iterable[str]) -> bool:
    """Return whether each text is HOST or HOST:CONTAINER. May raise ValueError instead."""
    return all(shared_path(text) for text in values)


def are_shared_devices(values: Iterable[object]) -> bool:
    """Return whether each text is HOST or HOST:CONTAINER, and none is a binderfs. May raise ValueError instead."""
    return all(shared_path(item)[0] != OWN_BINDERFS for item in values if isinstance(item, str))


def are_different_paths(values: Sequence[str]) -> bool:
    """Return whether all paths differ after normalization."""
    return len({normalised(path) for path in values}) == len(values)


def are_device_lists(values: Sequence[DeviceList]) -> bool:
    """Return whether each strategy occurs once, and one of them brings the binder devices, not only their names."""
    return len(set(values)) == len(values) and not {*values} <= {DeviceList.ENVVAR}


def are_device_names(values: Sequence[str]) -> bool:
    """Return whether each text is the name of a binder device, and occurs once."""
    return len(set(values)) == len(values) and all(
        name_problem(name) is None and name != CONTROL_NAME for name in values
    )


def is_set_pattern(pattern: str) -> bool:
    """Return whether the pattern is a file name with {set} and {name}, or {set} in a directory and {name} in a file."""
    return sets.pattern_problem(pattern, ["n"]) is None


def is_printable(value: Any) -> bool:
    """Return whether the text, or each text of a tuple or key of a mapping, can be printed and sent unchanged."""
    texts = value if isinstance(value, (tuple, dict)) else (value,)
    return all(text.isprintable() for text in texts if isinstance(text, str))


def normalised(path: str) -> str:
    """Return an absolute path in a unique spelling. Links are not resolved."""
    # POSIX gives two leading slashes a meaning of their own; Linux does not.
    return "/" + os.path.normpath(path).lstrip("/")
