"""The drivers that are compared: processes of a machine, each with a name and a service account of its own."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.cluster import accounts, dra
from tests.e2e.cluster.control_plane import PORT
from tests.e2e.cluster.sandbox import ADDRESS
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.processes import EnteredDaemon
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster

KUBELET: Final = Path("/run/kubelet")
"""A short path to the machine's kubelet directory, because the path of a socket has at most 107 bytes."""
_NUMBERS: Final = itertools.count(1)
_RIGHTS: Final = (
    ("resource.k8s.io", "resourceslices", "get list watch create update patch delete"),
    ("resource.k8s.io", "resourceclaims", "get"),
    ("", "nodes", "get"),
)


def print_logs(cluster: Cluster) -> None:
    """Print the ends of the logs of the control plane, the drivers and the kubelet."""
    for log in [*cluster.directory.glob("*.log"), cluster.machine.kubelet.log]:
        lines = log.read_text(errors="replace").splitlines()[-15:]
        say("\n".join([f"# end of {log.name}:", *(line[:400] for line in lines)]))


class Driver:
    """A driver as a process of the cluster's first machine."""

    def __init__(
        self, cluster: Cluster, title: str, name: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        """``name`` is the DRA driver's name."""
        self.title = title
        self.name = name
        self._cluster = cluster
        log = cluster.directory / f"{name}.log"
        self.daemon = EnteredDaemon(title, [*cluster.machine.enter(), *command], log, environment)

    def stop(self) -> None:
        """Stop the process, and delete its slices."""
        self.daemon.end()
        self._cluster.api.delete(dra.SLICES, fieldSelector=f"spec.driver={self.name}")

    def wait_offered(self, devices: int) -> None:
        """Wait until so many devices of the driver are in slices."""

        def offered() -> bool:
            slices = self._cluster.api.list(dra.SLICES, fieldSelector=f"spec.driver={self.name}")
            return sum(len(found["spec"]["devices"]) for found in slices) == devices

        until(offered, f"{self.title} has {devices} devices", seconds=4 * PATIENCE)

    @property
    def socket(self) -> Path:
        """The socket on which the driver serves the kubelet, as seen by this process."""
        separate = KUBELET / "plugins" / self.name / "dra.sock"
        if separate.exists():
            return separate
        return max((KUBELET / "plugins_registry").glob(f"{self.name}-*.sock"), key=lambda path: path.stat().st_mtime)


def go_driver(cluster: Cluster, program: Path, devices: int) -> Driver:
    """Return upstream's driver for tests, without its client's limit of 50 requests a second."""
    name = "go.example.com"
    (KUBELET / "plugins" / name).mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": accounts.token(cluster.api, "go-driver", _RIGHTS, "kube-system")}
    kubeconfig = cluster.directory / "go-driver.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    options = [
        f"--node-name={cluster.machine.name}",
        f"--num-devices={devices}",
        f"--drivername={name}",
        f"--kubeconfig={kubeconfig}",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
    ]
    command = [str(program), "kubelet-plugin", *options]
    return Driver(cluster, "Go", name, command, {"KUBECONFIG": str(kubeconfig)})


def found_devices(cluster: Cluster) -> Driver:
    """Return the plugin with stand-in devices that it finds."""
    config = {"resource_name": "aosp.io/device", "api": "dra", "verify": "char", "listen": "127.0.0.1:9478"}
    return plugin(cluster, "plugin, found devices", "device.aosp.io", "aosp_plugin", config)


def phones(cluster: Cluster, count: int) -> Driver:
    """Return the plugin with phones that it mounts on demand; a tmpfs is in place of each binderfs."""
    config = {
        "resource_name": "aosp.io/phone",
        "api": "dra",
        "verify": "char",
        "listen": "127.0.0.1:9479",
        "phones": {"count": count, "directory": "/run/phones"},
    }
    return plugin(cluster, "plugin, phones", "phone.aosp.io", "tests.e2e.cluster.figures.tmpfs_phones", config)


def plugin(cluster: Cluster, title: str, name: str, module: str, config: dict[str, Any]) -> Driver:
    """Return the plugin as a process that runs ``module`` with a configuration.

    ``name`` is that of its log and its account. With DRA it must be the driver's.
    """
    account = f"{name}-{next(_NUMBERS)}"
    directory = cluster.directory / "accounts" / account
    directory.mkdir(parents=True)
    (directory / "token").write_text(accounts.token(cluster.api, account, _RIGHTS, "kube-system"))
    (directory / "ca.crt").write_bytes(cluster.control_plane.authority.root.certificate.read_bytes())
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump({"version": "v1", "service_account_dir": str(directory)} | config))
    environment = {
        "NODE_NAME": cluster.machine.name,
        "KUBERNETES_SERVICE_HOST": ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(PORT),
        "PYTHONPATH": str(PROJECT),
    }
    return Driver(cluster, title, name, [sys.executable, "-m", module, "serve", f"--config={path}"], environment)
