"""The drivers that are compared: processes of a machine, each with a name and a service account of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.cluster.control_plane import PORT
from tests.e2e.cluster.figures.accounts import Account
from tests.e2e.cluster.figures.recorder import SLICES
from tests.e2e.cluster.sandbox import ADDRESS
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.processes import EnteredDaemon
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

KUBELET: Final = Path("/run/kubelet")
"""A short path to the machine's kubelet directory, because the path of a socket has at most 107 bytes."""
_NUMBERS: Final = itertools.count(1)
_CONNECTED: Final = re.compile(r"I(\d{4} [\d:.]+) .*\"Connection changed\" .*driverName=\"(\S+)\" .*connected=true")

_TAIL: Final = 15
"""Lines of each log that are printed after a failure."""


def print_logs(cluster: Cluster) -> None:
    """Print the ends of the logs of the control plane, the drivers and the kubelet."""
    for log in [*cluster.directory.glob("*.log"), cluster.machine.kubelet.log]:
        lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
        say("\n".join([f"# end of {log.name}:", *(line[:400] for line in lines)]))


class Driver:
    """A driver as a process of the cluster's first machine."""

    def __init__(
        self,
        cluster: Cluster,
        title: str,
        name: str,
        command: Sequence[str],
        account: Account,
        environment: dict[str, str] | None = None,
    ) -> None:
        """``name`` is the DRA driver's name."""
        self.title = title
        self.name = name
        self.account = account
        self._cluster = cluster
        log = cluster.directory / f"{name}.log"
        self.daemon = EnteredDaemon(title, [*cluster.machine.enter(), *command], log, environment)

    def start(self) -> float:
        """Start the process, and return the time of the start."""
        at = time.time()
        self.daemon.start()
        return at

    def stop(self) -> None:
        """Stop the process, and delete its slices."""
        self.daemon.end()
        self._cluster.api.delete(SLICES, fieldSelector=f"spec.driver={self.name}")

    def wait_registered(self, since: float) -> float:
        """Wait until the kubelet has connected to the driver, and return the time, which is after ``since``."""
        machine = self._cluster.machine
        return until(
            lambda: next((at for at in _connections(machine, self.name) if at >= since), 0.0),
            f"{self.title} is registered",
            seconds=4 * PATIENCE,
        )

    @property
    def socket(self) -> Path:
        """The socket on which the driver serves the kubelet, as seen by this process."""
        separate = KUBELET / "plugins" / self.name / "dra.sock"
        if separate.exists():
            return separate
        return max((KUBELET / "plugins_registry").glob(f"{self.name}-*.sock"), key=lambda path: path.stat().st_mtime)

    def processor_seconds(self) -> float:
        """Return the processor time that the process has used."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> tuple[float, float]:
        """Return the resident memory in MiB: all of it (RSS), and with a share of what others use too (PSS)."""
        text = Path(f"/proc/{self.daemon.pid}/smaps_rollup").read_text()
        rss, pss = (re.search(rf"^{key}: +(\d+) kB", text, re.MULTILINE) for key in ("Rss", "Pss"))
        assert rss is not None
        assert pss is not None
        return int(rss[1]) / 1024, int(pss[1]) / 1024


def _connections(machine: Machine, driver: str) -> list[float]:
    """Return the times at which the kubelet connected to a driver, from its log."""
    year = datetime.now().astimezone().year
    with contextlib.suppress(FileNotFoundError):
        found = _CONNECTED.findall(machine.kubelet.log.read_text(errors="replace"))
        return [_time(f"{year}{text}") for text, name in found if name == driver]
    return []


def _time(text: str) -> float:
    return datetime.strptime(text, "%Y%m%d %H:%M:%S.%f").astimezone().timestamp()


def go_driver(cluster: Cluster, program: Path, devices: int) -> Driver:
    """Return upstream's driver for tests, without its client's limit of 50 requests a second."""
    name = "go.example.com"
    (KUBELET / "plugins" / name).mkdir(parents=True, exist_ok=True)
    account = Account(cluster, "go-driver")
    options = [
        f"--node-name={cluster.machine.name}",
        f"--num-devices={devices}",
        f"--drivername={name}",
        f"--kubeconfig={account.kubeconfig}",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
    ]
    environment = {"KUBECONFIG": str(account.kubeconfig)}
    return Driver(cluster, "Go", name, [str(program), "kubelet-plugin", *options], account, environment)


def found_devices(cluster: Cluster, *, api: str = "dra") -> Driver:
    """Return the plugin with stand-in devices that it finds."""
    config = {"resource_name": "aosp.io/device", "api": api, "verify": "char", "listen": "127.0.0.1:9478"}
    return plugin(cluster, "plugin, found devices", "device.aosp.io", "aosp_plugin", config)


def phones(cluster: Cluster, count: int, parts: Path | None = None) -> Driver:
    """Return the plugin with phones that it mounts on demand; a tmpfs is in place of each binderfs.

    ``parts`` is a file to which the process writes at its end how long the parts of its work have taken.
    """
    config = {
        "resource_name": "aosp.io/phone",
        "api": "dra",
        "verify": "char",
        "listen": "127.0.0.1:9479",
        "phones": {"count": count, "directory": "/run/phones"},
    }
    module = f"tests.e2e.cluster.figures.{'timed' if parts else 'tmpfs'}_phones"
    return plugin(cluster, "plugin, phones", "phone.aosp.io", module, config, {"FIGURES_PARTS": str(parts)})


def plugin(
    cluster: Cluster, title: str, name: str, module: str, config: dict[str, Any], more: dict[str, str] | None = None
) -> Driver:
    """Return the plugin as a process that runs ``module`` with a configuration; ``more`` is added to its environment.

    ``name`` is that of its log and its account. With DRA it must be the driver's.
    """
    account = Account(cluster, f"{name}-{next(_NUMBERS)}")
    path = account.directory / "config.yaml"
    path.write_text(yaml.safe_dump({"version": "v1", "service_account_dir": str(account.directory)} | config))
    environment = {
        "NODE_NAME": cluster.machine.name,
        "KUBERNETES_SERVICE_HOST": ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(PORT),
        "PYTHONPATH": str(PROJECT),
    }
    command = [sys.executable, "-m", module, "serve", f"--config={path}"]
    return Driver(cluster, title, name, command, account, environment | (more or {}))
