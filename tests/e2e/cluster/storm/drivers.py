"""The plugin as processes of a machine, each with a name and a service account of its own."""

from __future__ import annotations

import itertools
import sys
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
