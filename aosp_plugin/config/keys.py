"""The keys: their types, limits and defaults. The docstring of a field is the description of its key.

Flags, variables, validation, help, the JSON Schema and docs/configuration.md follow from these structs.
"""

# No "from __future__ import annotations": the keys are in the annotations of the structs.
import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.devices.sets import MINORS_PER_PHONE, PHONE_BINDER_DEVICES
from aosp_plugin.binder.driver.binderfs import ALL_MINORS
from aosp_plugin.config import values
from aosp_plugin.config.convert import Key, Limit, keys_of
from aosp_plugin.config.values import OWN_BINDERFS, Api, Isolation, ProvisionedBy, Recreate
from aosp_plugin.framework.apiserver import SERVICE_ACCOUNT_DIRECTORY
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.service.address import is_loopback, listen_address


class NumberedSets(Struct, frozen=True, kw_only=True):
    """Sets of binder devices that belong together by their numbers."""

    size: Annotated[int, Meta(ge=1, le=64), Key("3")]
    """Number of binder devices in a device set."""
    stride: Annotated[Annotated[int, Meta(ge=1, le=values.LARGEST_NUMBER)] | None, Key("120")] = None
    """Difference between the numbers of successive binder devices of a device set, and the number of device sets. If
    null, the numbers of a device set are consecutive."""
    first: Annotated[values.DeviceNumber, Key("1")] = 0
    """Number of the first binder device of the first device set."""


class NamedSets(Struct, frozen=True, kw_only=True):
    """Sets of binder devices that belong together by their names."""

    names: Annotated[values.DeviceNames, Key("[binder, hwbinder, vndbinder]")]
    """Names of the binder devices of a device set, in the order in which a container gets them."""
    pattern: Annotated[values.SetPattern, Key('"{set}-{name}"')] = "{set}/{name}"
    """Path of a binder device below the device directory."""


class Phones(Struct, frozen=True, kw_only=True):
    """The phones that the plugin makes, each with a binderfs of its own."""

    count: Annotated[int, Meta(ge=1, le=ALL_MINORS // MINORS_PER_PHONE), Key("120")]
    """Number of phones."""
    directory: Annotated[values.AbsolutePath, Key("/run/aosp-binderfs/tenants")] = "/run/aosp-binderfs/phones"
    """Host directory of the binderfs mounts. Root alone can change it, and what is at its path."""


class SharedDevice(Struct, frozen=True, kw_only=True):
    """A device of the host, or all that match a pattern, that every container gets."""

    path: Annotated[values.PathPattern, Key("/dev/fuse")]
    """Path on the host, or a pattern."""
    container_path: Annotated[values.AbsolutePath | None, Key("/dev/ashmem")] = None
    """Path in the container. If null, the path on the host; null is required for a pattern."""
    required: Annotated[bool, Key("true")] = False
    """Whether the devices of the resource are unhealthy while it, or any match of a pattern, is missing."""


def shared_device(item: str | SharedDevice) -> SharedDevice:
    """Return an item of ``shared_devices``, which may be text, as a mapping."""
    if isinstance(item, SharedDevice):
        return item
    host, container = values.shared_path(item)
    return SharedDevice(path=host, container_path=None if container == host else container)


class SpreadDevice(Struct, frozen=True, kw_only=True):
    """A device of the host, or all that match a pattern, of which each device of the resource has one."""

    path: Annotated[values.PathPattern, Key("/dev/dri/renderD*")]
    """Path on the host, or a pattern."""
    container_path: Annotated[values.AbsolutePath | None, Key("/dev/dri/renderD128")] = None
    """Path in each container, whichever device it has. If null, the path on the host."""
    env: Annotated[values.VariableName, Key("GPU_NODE")] = ""
    """Environment variable with the path of the device in the container. If empty, it is not set."""
    per_device: Annotated[Annotated[int, Meta(ge=1, le=ALL_MINORS)] | None, Key("30")] = None
    """Maximum number of devices of the resource that share one; further ones are unhealthy. If null, there is no
    limit."""


def spread_device(item: str | SpreadDevice) -> SpreadDevice:
    """Return an item of ``spread_devices``, which may be text, as a mapping."""
    return item if isinstance(item, SpreadDevice) else SpreadDevice(path=item)


class SliceDevices(Struct, frozen=True, kw_only=True):
    """Numbered devices of the host, of which each device of the resource has several of its own."""

    path: Annotated[values.NumberedPath, Key("/dev/loop*")]
    """Path on the host, in which * stands for the number of the device."""
    count: Annotated[int, Meta(ge=1, le=1024), Key("40")]
    """Number of these devices for each device of the resource."""

    @property
    def pattern(self) -> str:
        """The pattern of the paths, which other files match as well: * stands for more than digits."""
        return values.normalised(self.path).replace("*", "[0-9]*")

    def of(self, number: int) -> list[str]:
        """Return the paths of the slice of device ``number`` of the resource."""
        before, _, after = values.normalised(self.path).partition("*")
        return [f"{before}{each}{after}" for each in range(number * self.count, (number + 1) * self.count)]


class Resource(Struct, frozen=True, kw_only=True):
    """The effective configuration of one resource: which devices it has, and what a container gets with a device."""

    resource_name: Annotated[values.ResourceName, Key("example.com/binder", flag=True)] = "aosp.io/binder"
    """Name of the resource that pods request."""
    api: Annotated[Api, Key("dra")] = Api.DEVICE_PLUGIN
    """Kubernetes API by which pods get the devices: device-plugin, dra (Dynamic Resource Allocation, which requires
    Kubernetes 1.34)."""
    phones: Annotated[
        Phones | None,
        Limit("a mapping with count and optionally directory; or null"),
        Key("{count: 120}", variable=False),
    ] = None
    """Phones that the plugin makes: each is a device with a binderfs of its own. Excludes device_dir, device_prefix
    and sets."""
    device_dir: Annotated[values.AbsolutePath, Key("/dev/binderfs", flag=True)] = "/dev"
    """Host directory of the binder devices."""
    device_prefix: Annotated[values.DevicePrefix, Key("binder", flag=True)] = "aosp_binder"
    """Prefix of the names of the binder devices."""
    verify: Annotated[Verify, Key("binder", flag=True)] = Verify.CHAR
    """Check that a binder device must pass to be healthy: file (it exists), char (it is a character device), binder (it
    belongs to the binder driver), probe (the driver also answers; requires the right to open it)."""
    isolation: Annotated[Isolation, Key("strict", flag=True)] = Isolation.SHARED
    """Whether containers see the host's binderfs: shared (its directory, read-only), strict (only their own binder
    devices)."""
    shared_mounts: Annotated[values.SharedMounts, Key(f"[{OWN_BINDERFS}:/dev/binderfs, /opt/phone]")] = (
        f"{OWN_BINDERFS}:/dev/binderfs",
    )
    """Host directories and files that every container gets read-only, if they exist; binderfs is the binderfs of its
    binder devices, and {id} and {number} are those of its device."""
    shared_devices: Annotated[
        tuple[values.SharedDevicePath | SharedDevice, ...],
        Limit(
            "a list of HOST, HOST:CONTAINER, patterns of HOST with the wildcards *, ? and [...], and mappings with "
            "path and optionally container_path and required; absolute paths, without options such as :rw"
        ),
        Key("[/dev/ashmem, /dev/dma_heap/*, {path: /dev/fuse, required: true}]"),
    ] = ("/dev/ashmem",)
    """Other character and block devices that every container gets, if they exist on the host."""
    spread_devices: Annotated[
        tuple[values.AbsolutePath | SpreadDevice, ...],
        Limit(
            "a list of absolute paths, each once, which may have the wildcards *, ? and [...], and mappings with path "
            "and optionally container_path, env and per_device",
            lambda items: values.are_different_paths([spread_device(item).path for item in items]),
        ),
        Key("[/dev/dri/card*, /dev/dri/renderD*]"),
    ] = ()
    """Host devices that are spread over the devices of the resource: each has one match of each item, selected by its
    number. A container gets the matches of its device, which is unhealthy while one is missing. The matches of one GPU
    stay together."""
    slice_devices: Annotated[
        tuple[SliceDevices, ...],
        Limit(
            "a list of mappings with path and count, each path once",
            lambda items: values.are_different_paths([devices.path for devices in items]),
        ),
        Key("[{path: /dev/loop*, count: 40}]", variable=False),
    ] = ()
    """Numbered host devices, of which each device of the resource has several of its own: device N has the numbers N *
    count to N * count + count - 1, which no other device has, and is unhealthy while one is missing. Requires phones,
    or sets with a size."""
    container_paths: Annotated[values.Paths, Key("[/dev/binder, /dev/hwbinder, /dev/vndbinder]")] = ()
    """Additional paths of binder devices in a container: the first path leads to its first binder device, the second
    path to the second one, and so on."""
    visible_devices_env: Annotated[values.VariableName, Key("VISIBLE_BINDER_DEVICES")] = "BINDER_VISIBLE_DEVICES"
    """Environment variable of containers with the names of their binder devices. If empty, it is not set."""
    path_env: Annotated[values.SearchPath, Key('""')] = "/system/bin:/system/xbin"
    """PATH of containers. If empty, the PATH of the image."""
    device_list: Annotated[values.DeviceLists, Key("[envvar, cdi-cri]")] = (
        DeviceList.ENVVAR,
        DeviceList.VOLUME_MOUNTS,
    )
    """Strategies by which a container gets its binder devices and their names: envvar (their names in a variable),
    volume-mounts (devices and mounts), cdi-cri (CDI names), cdi-annotations (CDI names in annotations)."""
    sets: Annotated[
        NumberedSets | NamedSets | None,
        Limit("a mapping with size and optionally stride and first, or with names and optionally pattern; or null"),
        Key("{size: 3}", variable=False),
    ] = None
    """Binder devices that form one device, by their numbers or by their names. If null, each one is a device."""
    provisioned_by: Annotated[ProvisionedBy, Key("provisioner")] = ProvisionedBy.PLUGIN
    """What mounts phones: plugin (serve, whenever they are missing), provisioner (aosp-plugin provisioner, a privileged
    process that runs beside serve and mounts phones on its request), command (aosp-plugin provision, which runs before
    serve, for example in an init container). With the last two, serve changes nothing on the host itself, and requires
    no privilege."""
    numa: Annotated[values.NumaNodes, Key("{0-179: 0, 180-359: 1}", variable=False)] = {}
    """NUMA nodes of devices, by their numbers."""
    recreate: Annotated[Recreate, Key("on-start")] = Recreate.NEVER
    """When the binder devices of a container are recreated: never, on-start (before the container starts; with
    api: dra, after a claim is over)."""
    replicas: Annotated[int, Meta(ge=1, le=1000), Key("2")] = 1
    """Number of containers that can have the same device."""
    missing_device_ttl: Annotated[values.Seconds, Key("60")] = 300.0
    """Seconds until a missing binder device is removed from the list, and a replaced one becomes healthy."""

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Return the resource with the given keys, and with the defaults that depend on them for the others."""
        return cls(**{**dependent_defaults(given), **given})

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables with the names of the devices of a container."""
        return tuple(
            filter(None, [self.visible_devices_env, *(spread_device(item).env for item in self.spread_devices)])
        )

    @property
    def scan_directory(self) -> str:
        """The host directory in which the resource's binder devices are found."""
        return self.device_dir if self.phones is None else self.phones.directory


PHONE_DEFAULTS: Mapping[str, Any] = {
    "resource_name": "aosp.io/phone",
    "verify": Verify.BINDER,
    "container_paths": tuple(f"/dev/{name}" for name in PHONE_BINDER_DEVICES),
    "recreate": Recreate.ON_START,
}
"""The defaults that differ if ``phones`` is set, so that ``phones: {count: 120}`` is a whole configuration."""


def dependent_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults of a resource that differ because of the keys that are given."""
    if given.get("phones") is None:
        return {}
    if given.get("provisioned_by") is ProvisionedBy.COMMAND:  # the plugin mounts no fresh binderfs
        return {**PHONE_DEFAULTS, "recreate": Recreate.NEVER}
    return PHONE_DEFAULTS


class Config(Struct, frozen=True, kw_only=True):
    """The effective configuration. Its own keys apply to the process, however many resources that serves."""

    host_root: Annotated[values.AbsolutePath, Key("/host", flag=True)] = "/"
    """Path of the host's root file system in the plugin's container."""
    kubelet_dir: Annotated[values.AbsolutePath, Key("/data/kubelet/device-plugins", flag=True)] = KUBELET_DIRECTORY
    """Device plugin directory of the kubelet, which has the default compiled in, whatever its --root-dir is. With
    another --root-dir, only resources with api: dra require ROOT/device-plugins here."""
    listen: Annotated[values.Address, Key("10.0.0.7:9478", flag=True)] = "127.0.0.1:9478"
    """HTTP address of /metrics, /healthz and /readyz. If empty, they are off."""
    status_listen: Annotated[values.AddressOrNull, Key("127.0.0.1:9479", flag=True)] = None
    """HTTP address of the page and /status, which name pods. If null, the address of listen if it is a loopback
    address, else 127.0.0.1 with the port of listen; off if listen is empty. If empty, they are off."""
    allowed_hosts: Annotated[values.HostNames, Key("[phones.example.com, aosp-plugin.kube-system.svc]")] = ()
    """Host names, other than localhost and those of the two addresses, under which clients reach the HTTP addresses:
    those of a Service, an Ingress or a Prometheus target. Requests with another name in their Host header are answered
    with 421."""
    log_level: Annotated[values.LogLevel, Key("debug", flag=True)] = "info"
    """Minimum level of log messages."""
    log_format: Annotated[values.LogFormat, Key("json", flag=True)] = "text"
    """Format of log messages."""
    cdi_dir: Annotated[values.AbsolutePath, Key("/etc/cdi")] = "/var/run/cdi"
    """Host directory of CDI spec files, for the CDI strategies of device_list."""
    pod_resources_socket: Annotated[values.PathOrEmpty, Key("/var/lib/k0s/kubelet/pod-resources/kubelet.sock")] = (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    """PodResources socket of the kubelet, for the pod of each device and the number of devices that the kubelet has. If
    empty, both are unknown."""
    service_account_dir: Annotated[values.AbsolutePath, Key("/etc/aosp-plugin/serviceaccount")] = (
        SERVICE_ACCOUNT_DIRECTORY
    )
    """Directory with the files token and ca.crt, with which the plugin connects to the API server. Only resources with
    api: dra, node_events and startup_taint require them."""
    node_events: Annotated[bool, Key("true")] = False
    """Write Events on the Node when devices are lost, when something else is wrong for a minute, and when that ends.
    Requires a service account."""
    startup_taint: Annotated[values.TaintKey, Key("aosp.io/starting")] = ""
    """Key of the taint that the plugin removes from its Node when all resources are ready. If empty, it removes none.
    Requires a service account."""
    runbook_url: Annotated[values.Link, Key("https://wiki.example.com/aosp-device-plugin/runbook")] = ""
    """URL at which operators read docs/runbook.md. If set, the page links each problem to its heading there."""
    resources: Annotated[
        tuple[Resource, ...],
        Meta(min_length=1),
        Limit("a list of one or more mappings of resource keys"),
        Key("[{resource_name: example.com/phone, sets: {size: 3}}, {device_prefix: test_binder}]", variable=False),
    ] = (Resource(),)
    """The resources, if there are several. A key that an entry omits has its value at the top level."""

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
        return posixpath.dirname(values.normalised(self.kubelet_dir)).rstrip("/")


def status_address(config: Config) -> tuple[str, int] | None:
    """Return the address of the page and /status; None if they are off.

    It is the address of ``listen`` itself if one server serves everything.
    """
    address = listen_address(config.listen)
    if config.status_listen is not None:
        return listen_address(config.status_listen)
    return address if address is None or is_loopback(address[0]) else ("127.0.0.1", address[1])


RESOURCE_KEYS = keys_of(Resource)
"""The keys of a resource. All of these mappings are in the order of help and documentation."""

PROCESS_KEYS = keys_of(Config)
"""The keys of the process, and ``resources``."""

KEYS: Mapping[str, Key] = RESOURCE_KEYS | {name: key for name, key in PROCESS_KEYS.items() if name != "resources"}
"""The keys that have one value at the top level of a file."""

DEFAULTS: Mapping[str, Any] = {name: getattr(Resource() if name in RESOURCE_KEYS else Config(), name) for name in KEYS}
"""The defaults of these keys."""
