"""The scenes: how the phones of a storm get their devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import plugin
from tests.e2e.cluster.figures import claims, drivers
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.figures.drivers import Driver
    from tests.e2e.cluster.figures.recorder import SliceRecorder

LABEL: Final = "storm"
DEVICE_PLUGIN: Final = "device-plugin"
DRA: Final = "dra"
_PORT: Final = 9478
_START: Final = 4 * PATIENCE


@dataclass(frozen=True)
class Scene:
    """A way to get devices."""

    title: str
    api: str = ""
    """``device-plugin``, ``dra``, or empty if the pods request nothing."""
    rpcs: tuple[str, ...] = ()
    """The requests that the plugin must get once for each pod that starts."""
    devices: Callable[[int, str], dict[str, Any]] = field(default=lambda _, __: {})
    """Returns the plugin's configuration keys for a number of devices and a directory, which no other scene has."""

    def resource(self, name: str) -> str:
        """Return the resource of the scene ``name``."""
        return f"aosp.io/{name}"


def _found(_: int, __: str) -> dict[str, Any]:
    return {}


def _recreated(count: int, directory: str) -> dict[str, Any]:
    # Devices can be recreated in a binderfs only, so the plugin makes one, and all devices in it.
    return {"provision": {"count": count, "directory": directory}, "recreate": "on-start"}


def _phones(count: int, directory: str) -> dict[str, Any]:
    return {"phones": {"count": count, "directory": directory}}


def _kept_phones(count: int, directory: str) -> dict[str, Any]:
    return {**_phones(count, directory), "recreate": "never"}


_PREPARE: Final = ("NodePrepareResources",)
SCENES: Final = {
    "nothing": Scene("no device"),
    "found": Scene("device plugin: found devices", DEVICE_PLUGIN, ("Allocate",), _found),
    "recreated": Scene("device plugin: found, recreated", DEVICE_PLUGIN, ("Allocate", "PreStartContainer"), _recreated),
    "kept-phones": Scene("device plugin: binderfs each", DEVICE_PLUGIN, ("Allocate",), _kept_phones),
    "phones": Scene(
        "device plugin: binderfs each, recreated", DEVICE_PLUGIN, ("Allocate", "PreStartContainer"), _phones
    ),
    "dra-found": Scene("DRA: found devices", DRA, _PREPARE, _found),
    "dra-recreated": Scene("DRA: found, recreated", DRA, _PREPARE, _recreated),
    "dra-phones": Scene("DRA: binderfs each", DRA, _PREPARE, _phones),
}
"""The scenes by name."""


class Stage:
    """A scene that is set: its plugin runs on the cluster's first machine, and offers the devices."""

    def __init__(self, cluster: Cluster, name: str, count: int) -> None:
        """Prepare the scene ``name`` with ``count`` devices."""
        self.scene = SCENES[name]
        self._cluster = cluster
        self._count = count
        self._resource = self.scene.resource(name)
        self._name = f"{name}.aosp.io"
        self.driver: Driver | None = None
        if self.scene.api:
            config = {
                "resource_name": self._resource,
                "api": self.scene.api,
                "verify": "char",
                "listen": f"{cluster.machine.address}:{_PORT}",
                "log_level": "debug",
                "log_format": "json",
                **self.scene.devices(count, f"/run/phones/{name}"),
            }
            module = "tests.e2e.cluster.figures.tmpfs_phones"
            self.driver = drivers.plugin(cluster, self.scene.title, self._name, module, config)
        if self.scene.api == DRA:
            claims.create_class(cluster.api, self._name)

    @property
    def metrics(self) -> str:
        """The address of the plugin's metrics."""
        return f"http://{self._cluster.machine.address}:{_PORT}/metrics"

    @property
    def log(self) -> str:
        """What the plugin has logged since its first start."""
        return self.driver.daemon.log.read_text(errors="replace") if self.driver else ""

    def start(self, slices: SliceRecorder) -> None:
        """Start the plugin, and wait until all devices are offered."""
        if self.driver is None:
            return
        since = self.driver.start()
        if self.scene.api == DRA:
            self.driver.wait_registered(since)
            slices.wait(self._name, self._count, since)
        else:
            self._wait_allocatable(self._count)

    def stop(self) -> None:
        """Stop the plugin, and wait until no device is offered."""
        if self.driver is None:
            return
        self.driver.stop()
        if self.scene.api == DEVICE_PLUGIN:
            self._wait_allocatable(0)

    def _wait_allocatable(self, count: int) -> None:
        cluster = self._cluster
        plugin.wait_allocatable(cluster, cluster.machine, count, self._resource, seconds=_START)

    def pod(self, name: str, storm: str) -> dict[str, Any]:
        """Return the manifest of a phone."""
        container: dict[str, Any] = {
            "name": "main",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/busybox", "sleep", "100000"],
        }
        spec: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "dnsPolicy": "Default",  # the cluster has no DNS
            "terminationGracePeriodSeconds": 1,  # with 0, the object does not wait for Unprepare
            "containers": [container],
        }
        if self.scene.api == DEVICE_PLUGIN:
            container["resources"] = {"limits": {self._resource: 1}}
        elif self.scene.api == DRA:
            container["resources"] = {"claims": [{"name": "phone"}]}
            spec["resourceClaims"] = [
                {"name": "phone", "resourceClaimTemplateName": claims.class_name(self._name)},
            ]
        metadata = {"name": name, "labels": {LABEL: storm}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
