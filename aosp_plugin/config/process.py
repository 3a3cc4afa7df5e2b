"""Keys that apply to the process, however many resources it serves; and all keys by name."""

# No "from __future__ import annotations": the keys are in the annotations of Config.
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from aosp_plugin.config.keys import Key, keys_of
from aosp_plugin.config.resource import RESOURCE_KEYS, Resource
from aosp_plugin.config.values import AbsolutePath
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.service.address import listen_address

FILE_VERSION = "v1"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class Config(Struct, frozen=True, kw_only=True):
    """The effective configuration."""

    host_root: Annotated[
        AbsolutePath,
        Key("Path of the host's root file system in the plugin's container.", "/host"),
    ] = "/"
    kubelet_dir: Annotated[
        AbsolutePath,
        Key("Device plugin directory of the kubelet.", "/var/lib/k0s/kubelet/device-plugins"),
    ] = KUBELET_DIRECTORY
    listen: Annotated[
        str,
        Key(
            "HTTP address of the page, /status, /metrics, /healthz and /readyz. If empty, HTTP is off.",
            "10.0.0.7:9478",
            "HOST:PORT, [IPv6]:PORT, or empty",
            lambda value: listen_address(value) or not value,
        ),
    ] = "127.0.0.1:9478"
    log_level: Annotated[LogLevel, Key("Minimum level of log messages.", "debug")] = "info"
    log_format: Annotated[LogFormat, Key("Format of log messages.", "json")] = "text"
    require_devices: Annotated[
        bool,
        Key("Exit if no device is found at startup, instead of registering zero devices.", "true"),
    ] = False
    cdi_dir: Annotated[
        AbsolutePath,
        Key("Host directory of CDI spec files, for the CDI strategies of device_list.", "/etc/cdi", flag=False),
    ] = "/var/run/cdi"
    pod_resources_socket: Annotated[
        str,
        Key(
            "PodResources socket of the kubelet, for the pod of each device. If empty, pods are unknown.",
            "/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
            "an absolute path, or empty",
            lambda value: not value or value.startswith("/"),
            flag=False,
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    leak_scan_interval: Annotated[
        float,
        Key(
            "Seconds between scans for leaked devices. If 0, leak detection is off.",
            "300",
            "a number of seconds, 0 or more",
            lambda value: 0 <= value < math.inf,
            flag=False,
        ),
    ] = 0.0
    resources: Annotated[
        tuple[Resource, ...],
        Meta(min_length=1),
        Key(
            "The resources, if there are several. A key that an entry omits has its value at the top level.",
            "[{resource_name: example.com/phone, sets: {size: 3}}, {device_prefix: test_binder}]",
            "a list of one or more mappings of resource keys",
            flag=False,
            variable=False,
        ),
    ] = (Resource(),)


PROCESS_KEYS = keys_of(Config)

KEYS: Mapping[str, Key] = RESOURCE_KEYS | {name: key for name, key in PROCESS_KEYS.items() if name != "resources"}
"""The keys that have one value at the top level of a file, in the order of help and documentation."""

_DEFAULTS = Config()

DEFAULTS: Mapping[str, Any] = {
    name: getattr(_DEFAULTS.resources[0] if name in RESOURCE_KEYS else _DEFAULTS, name) for name in KEYS
}
"""The default of each of these keys."""
