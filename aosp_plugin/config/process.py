"""Keys that apply to the process, however many resources it serves; and all keys by name."""

# No "from __future__ import annotations": the keys are in the annotations of Config.
import math
import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from aosp_plugin.config.keys import Key, keys_of
from aosp_plugin.config.resource import RESOURCE_KEYS, Resource
from aosp_plugin.config.values import (
    AbsolutePath,
    are_host_names,
    is_feature_file,
    is_link,
    is_startup_taint,
    normalised,
)
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.service.address import is_loopback, listen_address

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
        Key(
            "Device plugin directory of the kubelet, which has the default compiled in, whatever its --root-dir is. "
            "With another --root-dir, only resources with api: dra require ROOT/device-plugins here.",
            "/data/kubelet/device-plugins",
        ),
    ] = KUBELET_DIRECTORY
    listen: Annotated[
        str,
        Key(
            "HTTP address of /metrics, /healthz and /readyz. If empty, they are off.",
            "10.0.0.7:9478",
            "HOST:PORT, [IPv6]:PORT, or empty",
            lambda value: listen_address(value) or not value,
        ),
    ] = "127.0.0.1:9478"
    status_listen: Annotated[
        str | None,
        Key(
            "HTTP address of the page and /status, which name pods and show command lines. If null, the address of "
            "listen if it is a loopback address, else 127.0.0.1 with the port of listen; off if listen is empty. If "
            "empty, they are off.",
            "127.0.0.1:9479",
            "HOST:PORT, [IPv6]:PORT, empty, or null",
            lambda value: value is None or listen_address(value) or not value,
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Key(
            "Host names, other than localhost and those of the two addresses, under which clients reach the HTTP "
            "addresses: those of a Service, an Ingress or a Prometheus target. Requests with another name in their "
            "Host header are answered with 421.",
            "[phones.example.com, aosp-plugin.kube-system.svc]",
            "a list of host names without port",
            are_host_names,
            flag=False,
        ),
    ] = ()
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
            "PodResources socket of the kubelet, for the pod of each device and the number of devices that the kubelet "
            "has. If empty, both are unknown.",
            "/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
            "an absolute path, or empty",
            lambda value: not value or value.startswith("/"),
            flag=False,
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    service_account_dir: Annotated[
        AbsolutePath,
        Key(
            "Directory with the files token and ca.crt, with which the plugin connects to the API server. Only "
            "resources with api: dra, node_events and startup_taint require them.",
            "/etc/aosp-plugin/serviceaccount",
            flag=False,
        ),
    ] = "/var/run/secrets/kubernetes.io/serviceaccount"
    node_events: Annotated[
        bool,
        Key(
            "Write Events on the Node when devices are lost, when the kubelet has lost devices or the plugin, when a "
            "second plugin of a resource runs, and when that ends. Requires a service account.",
            "true",
            flag=False,
        ),
    ] = False
    startup_taint: Annotated[
        str,
        Key(
            "Key of the taint that the plugin removes from its Node when all resources are ready. If empty, it removes "
            "none. Requires a service account.",
            "aosp.io/starting",
            "the key of a taint that Kubernetes does not manage, or empty",
            lambda value: not value or is_startup_taint(value),
            flag=False,
        ),
    ] = ""
    feature_file: Annotated[
        str,
        Key(
            "Host file for Node Feature Discovery, with the number and kind of the devices of each resource as labels. "
            "If empty, it is not written.",
            "/etc/kubernetes/node-feature-discovery/features.d/aosp-device-plugin",
            "an absolute path of a file in a directory features.d, whose name does not begin with a dot, or empty",
            lambda value: not value or is_feature_file(value),
            flag=False,
        ),
    ] = ""
    leak_scan_interval: Annotated[
        float,
        Key(
            "Seconds between scans for leaked devices. If 0, leak detection is off.",
            "300",
            "0, or a number of seconds from 1 on",
            lambda value: value == 0 or 1 <= value < math.inf,
            flag=False,
        ),
    ] = 0.0
    runbook_url: Annotated[
        str,
        Key(
            "Address at which operators read docs/runbook.md. If set, the page links each problem to its "
            "heading there.",
            "https://wiki.example.com/aosp-device-plugin/runbook",
            "an http or https URL without fragment, or empty",
            is_link,
            flag=False,
        ),
    ] = ""
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

    @property
    def plugins_registry(self) -> str:
        """The directory in which the kubelet looks for the registration sockets of DRA drivers."""
        return f"{self._kubelet_root}/plugins_registry"

    def driver_directory(self, driver_name: str) -> str:
        """Return the directory for the files of a DRA driver, below the kubelet's root directory."""
        return f"{self._kubelet_root}/plugins/{driver_name}"

    @property
    def _kubelet_root(self) -> str:
        """The root directory of the kubelet (``--root-dir``), which contains the device plugin directory."""
        return posixpath.dirname(normalised(self.kubelet_dir)).rstrip("/")


def status_address(config: Config) -> tuple[str, int] | None:
    """Return the address of the page and /status; None if they are off.

    It is the address of ``listen`` itself if one server serves everything.
    """
    address = listen_address(config.listen)
    if config.status_listen is not None:
        return listen_address(config.status_listen)
    return address if address is None or is_loopback(address[0]) else ("127.0.0.1", address[1])


PROCESS_KEYS = keys_of(Config)

KEYS: Mapping[str, Key] = RESOURCE_KEYS | {name: key for name, key in PROCESS_KEYS.items() if name != "resources"}
"""The keys that have one value at the top level of a file, in the order of help and documentation."""

_DEFAULTS = Config()

DEFAULTS: Mapping[str, Any] = {
    name: getattr(_DEFAULTS.resources[0] if name in RESOURCE_KEYS else _DEFAULTS, name) for name in KEYS
}
"""The default of each of these keys."""
