"""The keys of the process, which it has once however many resources it serves; and all keys by name."""

# No "from __future__ import annotations": the annotations of Config are what the keys are made of.
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from aosp_plugin.config.keys import Key, keys_of
from aosp_plugin.config.resource import RESOURCE_KEYS, Resource
from aosp_plugin.config.values import AbsolutePath
from aosp_plugin.framework.deviceplugin.plugin import KUBELET_DIRECTORY
from aosp_plugin.framework.service.address import listen_address

FILE_VERSION = "v1"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class Config(Struct, frozen=True, kw_only=True):
    """The effective configuration."""

    host_root: Annotated[AbsolutePath, Key("Where the host's files are seen, in a container.", "an absolute path")] = (
        "/"
    )
    kubelet_dir: Annotated[AbsolutePath, Key("The kubelet's plugin directory.", "an absolute path")] = KUBELET_DIRECTORY
    listen: Annotated[
        str,
        Key(
            "Address of the page, /status, /metrics, /healthz and /readyz; empty turns it off.",
            "host:port, [IPv6]:port, or empty",
            lambda value: listen_address(value) or not value,
        ),
    ] = "127.0.0.1:9478"
    log_level: Annotated[LogLevel, Key("The least that is logged.", ", ".join(get_args(LogLevel)))] = "info"
    log_format: Annotated[LogFormat, Key("How it is logged.", ", ".join(get_args(LogFormat)))] = "text"
    require_devices: Annotated[bool, Key("Exit at the start where there is no node.", "true, false")] = False
    cdi_dir: Annotated[AbsolutePath, Key("Host directory of CDI files.", "an absolute path", flag=False)] = (
        "/var/run/cdi"
    )
    pod_resources_socket: Annotated[
        str,
        Key(
            "The kubelet's socket that tells which pod has which device; empty: nobody asks.",
            "an absolute path, or empty",
            lambda value: not value or value.startswith("/"),
            flag=False,
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    leak_scan_interval: Annotated[
        float,
        Key(
            "Seconds between looks for leaked nodes; 0: never.",
            "a number, 0 or more",
            lambda value: 0 <= value < math.inf,
            flag=False,
        ),
    ] = 0.0
    resources: Annotated[
        tuple[Resource, ...],
        Meta(min_length=1),
        Key(
            "The resources, where there is more than one; what an entry leaves out it has from the top level.",
            "a list of one mapping or more, each with keys of a resource",
            flag=False,
            variable=False,
        ),
    ] = (Resource(),)


PROCESS_KEYS = keys_of(Config)

KEYS: Mapping[str, Key] = RESOURCE_KEYS | {name: key for name, key in PROCESS_KEYS.items() if name != "resources"}
"""The keys that have one value each at the top level of a file, in the order in which people read them."""

_DEFAULTS = Config()

DEFAULTS: Mapping[str, Any] = {
    name: getattr(_DEFAULTS.resources[0] if name in RESOURCE_KEYS else _DEFAULTS, name) for name in KEYS
}
"""What each of these is where nobody sets it."""
