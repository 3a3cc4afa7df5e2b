"""The control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of the sandbox."""

import http.client
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.cluster.api import Api
from tests.e2e.cluster.certificates import Authority
from tests.e2e.cluster.network import ADDRESS, SERVICE, SERVICES
from tests.e2e.common.processes import Daemon, run
from tests.e2e.common.waiting import PATIENCE, until

PORT: Final = 443
"""Pods reach the API server at the address of its service, and no kube-proxy translates the port."""
ADMINISTRATORS: Final = "system:masters"
ETCD: Final = "http://127.0.0.1:2379"
_START: Final = 4 * PATIENCE
"""Seconds; the API server needs 7 of them on a busy machine."""
GATES: Final = ("ResourceHealthStatus", "DRAExtendedResource", "DRADeviceTaints")
"""Feature gates that are on by default from Kubernetes 1.36 on."""
GATES_BY_DEFAULT: Final = 36
NODE_GRACE: Final = 50.0
"""Kubernetes' default."""
_STOP: Final = 90.0
"""Seconds; the API server waits for up to 60 s for the watches of kubelets."""


class ControlPlane:
    """The four programs, and the administrator's client."""

    def __init__(
        self, programs: Path, directory: Path, *, gates: Sequence[str] = GATES, grace: float = NODE_GRACE
    ) -> None:
        """Create certificates; ``programs`` is the directory of the binaries, ``directory`` gets data and logs.

        ``gates`` are feature gates to enable before they are by default. ``grace`` are the seconds after which a node
        without a report is NotReady.
        """
        directory.mkdir(parents=True)
        self._directory = directory
        self.authority = Authority(directory / "pki")
        self.server = f"https://{ADDRESS}:{PORT}"
        self.kubeconfig = self.authority.kubeconfig("admin", self.server, "admin", [ADMINISTRATORS])
        self._administrator = self.authority.issue("client", "admin", groups=[ADMINISTRATORS])
        self.api = Api(ADDRESS, PORT, self.authority.root.certificate, self._administrator)
        self._early_gates, self._grace = gates, grace
        self.use(programs)

    def use(self, programs: Path) -> None:
        """Use the binaries of another directory from the next start on, for an upgrade. Nothing may be running."""
        self.programs = programs
        """The directory of the binaries."""
        found = re.search(r" v1\.(\d+)\.", run(str(programs / "kube-apiserver"), "--version"))
        assert found, f"{programs} has no kube-apiserver of Kubernetes 1"
        self.minor = int(found[1])
        """The minor version of Kubernetes."""
        self._gates = () if self.minor >= GATES_BY_DEFAULT else tuple(self._early_gates)
        self.etcd = self._daemon(programs, "etcd", self._etcd())
        self.apiserver = self._daemon(programs, "kube-apiserver", self._apiserver())
        manager, scheduler = "kube-controller-manager", "kube-scheduler"
        more = (
            f"--service-account-private-key-file={self.authority.service_accounts.key}",
            f"--root-ca-file={self.authority.root.certificate}",
            "--use-service-account-credentials=true",
            f"--node-monitor-grace-period={self._grace:.0f}s",
        )
        self.controller_manager = self._daemon(programs, manager, self._client(manager, *more))
        self.scheduler = self._daemon(programs, scheduler, self._client(scheduler))

    def as_token(self, token: str) -> Api:
        """Return the requests of a user with a token."""
        return Api(ADDRESS, PORT, self.authority.root.certificate, token)

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        """The four processes, in the order of their start."""
        return self.etcd, self.apiserver, self.controller_manager, self.scheduler

    def start(self) -> None:
        """Start what does not run, and wait until pods can be created and scheduled."""
        self.start_api_server()
        for daemon in self.daemons:
            if not daemon.running:
                daemon.start()
        accounts = "/api/v1/namespaces/default/serviceaccounts/default"
        until(lambda: self.api.find(accounts), "the default service account exists", seconds=_START)

    def start_api_server(self) -> None:
        """Start etcd and the API server, and wait until it is ready."""
        if not self.etcd.running:
            self.etcd.start()
        until(lambda: _healthy(f"{ETCD}/health"), "etcd is healthy", seconds=_START)
        if not self.apiserver.running:
            self.apiserver.start()
        until(lambda: self.api.text("GET", "/readyz") == "ok", "the API server is ready", seconds=_START)

    def stop(self) -> None:
        """Stop all, in the reverse order."""
        for daemon in reversed(self.daemons):
            if daemon.running:
                daemon.end(seconds=_STOP)

    def replace(self, programs: Path) -> None:
        """Restart all with the programs of another directory, on the same data."""
        self.stop()
        self.use(programs)
        self.start()

    def tails(self) -> Iterator[tuple[str, str]]:
        """Yield name and end of the log of each process."""
        for daemon in self.daemons:
            yield daemon.name, daemon.tail()

    def _daemon(self, programs: Path, name: str, arguments: Sequence[str]) -> Daemon:
        gates = ",".join(f"{gate}=true" for gate in self._gates)
        more = [f"--feature-gates={gates}"] if gates and name != "etcd" else []
        return Daemon(name, [str(programs / name), *arguments, *more], self._directory / f"{name}.log")

    def _etcd(self) -> list[str]:
        # The data need not survive a crash of the machine.
        return [
            f"--data-dir={self._directory}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        issue, accounts = self.authority.issue, self.authority.service_accounts
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        # DRADeviceTaints: before 1.36, scheduler and controller manager wait for rules of this version.
        alpha = [] if "DRADeviceTaints" not in self._gates else ["--runtime-config=resource.k8s.io/v1alpha3=true"]
        server = issue("kube-apiserver", "kube-apiserver", names=names, addresses=[ADDRESS, SERVICE, "127.0.0.1"])
        client = issue("kubelet-client", "kube-apiserver", groups=[ADMINISTRATORS])
        return [
            f"--etcd-servers={ETCD}",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={PORT}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={self.authority.root.certificate}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={client.certificate}",
            f"--kubelet-client-key={client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            *alpha,
        ]

    def _client(self, name: str, *more: str) -> list[str]:
        """Return the arguments of a program that is a client of the API server."""
        kubeconfig = self.authority.kubeconfig(name, self.server, f"system:{name}")
        return [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1", *more]


def _healthy(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - an address of this sandbox
        return bool(answer.status == http.client.OK)
