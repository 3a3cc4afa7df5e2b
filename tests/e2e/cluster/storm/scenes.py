"""The scenes: how the phones of a storm get their devices."""

import sys
from typing import Any, Final, NamedTuple

import yaml

from tests.e2e.cluster import accounts, dra, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.control_plane import PORT
from tests.e2e.cluster.sandbox import ADDRESS
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.processes import EnteredDaemon
from tests.e2e.kubelet.waiting import PATIENCE, until

DEVICE_PLUGIN: Final = "device-plugin"
DRA: Final = "dra"
_START: Final = 4 * PATIENCE
_MODULE: Final = "tests.tmpfs_phones"
_RIGHTS: Final = (
    ("resource.k8s.io", "resourceslices", "list watch create update delete"),
    ("resource.k8s.io", "resourceclaims", "get"),
    ("", "nodes", "get"),
)


class Scene(NamedTuple):
    """A way to get devices."""

    title: str
    api: str = ""
    """``device-plugin``, ``dra``, or empty if the pods request nothing."""
    phones: bool = False
    """Whether the plugin mounts a binderfs for each phone."""
    rpcs: tuple[str, ...] = ()
    """The requests that the plugin must get once for each pod that starts."""


_PREPARE: Final = ("NodePrepareResources",)
SCENES: Final = {
    "nothing": Scene("no device"),
    "found": Scene("device plugin: found", DEVICE_PLUGIN, rpcs=("Allocate",)),
    "phones": Scene(
        "device plugin: binderfs each, recreated", DEVICE_PLUGIN, phones=True, rpcs=("Allocate", "PreStartContainer")
    ),
    "dra-found": Scene("DRA: found", DRA, rpcs=_PREPARE),
    "dra-phones": Scene("DRA: binderfs each", DRA, phones=True, rpcs=_PREPARE),
}
"""The scenes by name."""


class Stage:
    """A scene that is set: its plugin runs on the cluster's first machine, and offers the devices."""

    def __init__(self, cluster: Cluster, name: str, count: int) -> None:
        """Prepare the scene ``name`` with ``count`` devices."""
        self.scene = SCENES[name]
        self.app = name
        """The label of the pods."""
        self._cluster = cluster
        self._count = count
        self._resource = f"aosp.io/{name}"
        self._name = f"{name}.aosp.io"
        self._daemon: EnteredDaemon | None = None
        if self.scene.api:
            config: dict[str, Any] = {
                "resource_name": self._resource,
                "api": self.scene.api,
                "verify": "char",
                "log_level": "debug",
                "log_format": "json",
            }
            if self.scene.phones:
                config["phones"] = {"count": count, "directory": f"/run/phones/{name}"}
            self._daemon = self._plugin(config)
        if self.scene.api == DRA:
            self._create_class()

    def _plugin(self, config: dict[str, Any]) -> EnteredDaemon:
        """Return the plugin as a process of the machine, with an account of its own."""
        cluster, name = self._cluster, self._name
        directory = cluster.directory / "accounts" / name
        directory.mkdir(parents=True)
        (directory / "token").write_text(accounts.token(cluster.api, name, _RIGHTS, "kube-system"))
        (directory / "ca.crt").write_bytes(cluster.control_plane.authority.root.certificate.read_bytes())
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump({"version": "v1", "service_account_dir": str(directory)} | config))
        environment = {
            "NODE_NAME": cluster.machine.name,
            "KUBERNETES_SERVICE_HOST": ADDRESS,
            "KUBERNETES_SERVICE_PORT": str(PORT),
            "PYTHONPATH": str(PROJECT),
        }
        command = [*cluster.machine.enter(), sys.executable, "-m", _MODULE, "serve", f"--config={path}"]
        return EnteredDaemon(self.scene.title, command, cluster.directory / f"{name}.log", environment)

    def _create_class(self) -> None:
        """Create a class of the driver's devices, and a template of claims with the same name."""
        api, name = self._cluster.api, self._name
        selector = {"cel": {"expression": f'device.driver == "{name}"'}}
        api.create(dra.CLASSES, {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
        api.create(dra.TEMPLATES, dra.template(name, dra.request("device", device_class=name)))

    @property
    def log(self) -> str:
        """What the plugin has logged since its first start."""
        return self._daemon.log.read_text(errors="replace") if self._daemon else ""

    def start(self) -> None:
        """Start the plugin, and wait until all devices are offered."""
        if self._daemon is None:
            return
        self._daemon.start()
        if self.scene.api == DRA:
            until(lambda: self._offered() == self._count, f"{self._count} devices are in slices", seconds=_START)
        else:
            self._wait_allocatable(self._count)

    def _offered(self) -> int:
        """Return the number of the driver's devices in slices."""
        slices = self._cluster.api.list(dra.SLICES, fieldSelector=f"spec.driver={self._name}")
        return sum(len(found["spec"]["devices"]) for found in slices)

    def stop(self) -> None:
        """Stop the plugin, and wait until no device is offered."""
        if self._daemon is None:
            return
        self._daemon.end()
        self._cluster.api.delete(dra.SLICES, fieldSelector=f"spec.driver={self._name}")
        if self.scene.api == DEVICE_PLUGIN:
            self._wait_allocatable(0)

    def _wait_allocatable(self, count: int) -> None:
        cluster = self._cluster
        plugin.wait_allocatable(cluster, cluster.machine, count, self._resource, seconds=_START)

    def pod(self, name: str) -> dict[str, Any]:
        """Return the manifest of a phone."""
        options = dra.claiming(template=self._name) if self.scene.api == DRA else {}
        manifest = phones.pod(name, dnsPolicy="Default", **options)  # the cluster has no DNS
        manifest["metadata"]["labels"] = {"app": self.app}
        (container,) = manifest["spec"]["containers"]
        container["command"] = ["/bin/busybox", "sleep", "100000"]
        if self.scene.api != DRA:
            container["resources"] = {"limits": {self._resource: 1}} if self.scene.api else {}
        return manifest
