"""A node that kubeadm's documents describe: a guest with Debian's systemd, containerd's defaults and a CNI plugin."""

import base64
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.cluster.api import Api
from tests.e2e.cluster.certificates import Certificate
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.guest import ENVIRONMENT, SLOW
from tests.e2e.cluster.systemd_guest import SystemdGuest, Unit
from tests.e2e.common.processes import run
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kernel import initrd
from tests.e2e.kubeadm import parts as own
from tests.e2e.kubeadm.parts import NEW, OLD, Parts
from tests.e2e.kubelet import versions
from tests.e2e.kubelet.runtime import network

_PODS: Final = "10.244.0.0/16"
_PORT: Final = 6443
_SOCKET: Final = "/run/containerd/containerd.sock"
INIT: Final = "/etc/kubeadm-init.yaml"
"""What a user gives `kubeadm init` as options, and more time."""
UPGRADE: Final = "/etc/kubeadm-upgrade.yaml"
"""More time for `kubeadm upgrade`."""
_KUBELET: Final = """\
[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
--kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
"""
"""kubelet.service and its drop-in of Kubernetes' package, in one."""
_TIMEOUTS: Final = ("controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "etcdAPICall")
_ALONE: Final = {"name": "leader-elect", "value": "false"}
_UNITS: Final = "etc/systemd/system"


def _configuration(**objects: dict[str, Any]) -> str:
    """Return a configuration of kubeadm, by kinds, in which it waits as long as an emulated machine may need."""
    timeouts = dict.fromkeys((*_TIMEOUTS, "tlsBootstrap", "upgradeManifests"), "1h")
    api = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
    with_timeouts = {kind: {"timeouts": timeouts} if kind != "ClusterConfiguration" else {} for kind in objects}
    return yaml.safe_dump_all(
        [api | {"kind": kind} | with_timeouts[kind] | content for kind, content in objects.items()]
    )


class KubeadmNode(SystemdGuest):
    """A guest on which kubeadm makes a cluster."""

    processors = 4
    """kubeadm requires two."""

    def __init__(self, parts: Parts, control_plane: ControlPlane, directory: Path, images: Sequence[Path]) -> None:
        assert parts.cluster.guest is not None
        super().__init__(parts.cluster.guest, control_plane, directory, images, parts.cluster.containerd)
        self._kubeadm = parts

    def use(self, programs: Path) -> None:
        """Write the files that the guest copies to its root directory when it boots."""
        files = self.directory / "files"
        contents = {
            f"{_UNITS}/kubelet.service": _KUBELET,
            "etc/modules-load.d/k8s.conf": "overlay\nbr_netfilter\n",
            "etc/sysctl.d/k8s.conf": "net.ipv4.ip_forward = 1\n",
            "etc/hostname": f"{self.name}\n",
            "etc/resolv.conf": "nameserver 203.0.113.10\n",  # nothing answers there
            "etc/cni/net.d/10-pods.conflist": json.dumps(network(_PODS.replace("/16", "/24"))),
            "etc/containerd/config.toml": self._containerd_configuration(),
            INIT[1:]: _configuration(
                InitConfiguration={},
                ClusterConfiguration={
                    "kubernetesVersion": versions.VERSIONS[OLD],
                    "networking": {"podSubnet": _PODS},
                    # With the default, RSA, an emulated API server takes twice as long to start.
                    "encryptionAlgorithm": "ECDSA-P256",
                    # On a busy machine they lose the lease, and end.
                    "controllerManager": {"extraArgs": [_ALONE]},
                    "scheduler": {"extraArgs": [_ALONE]},
                },
            ),
            UPGRADE[1:]: _configuration(UpgradeConfiguration={}),
        }
        containerd, modules = self._containerd, self._kubeadm.modules
        (release,) = (path.name for path in (modules / "lib/modules").iterdir())
        links: dict[str, str | Path] = {
            f"usr/lib/modules/{release}": modules / f"lib/modules/{release}",
            f"boot/config-{release}": modules / f"boot/config-{release}",
            "opt/cni/bin": "/usr/lib/cni",
            **{f"usr/bin/{name}": containerd / name for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            **{f"usr/bin/{name}": programs / name for name in ("kubeadm", "kubelet", "kubectl")},
            f"{_UNITS}/multi-user.target.wants/containerd.service": "/lib/systemd/system/containerd.service",
            # It empties /tmp, which is the host's.
            f"{_UNITS}/systemd-tmpfiles-setup.service": "/dev/null",
        }
        shutil.rmtree(files, ignore_errors=True)
        for path in (*contents, *links):
            (files / path).parent.mkdir(parents=True, exist_ok=True)
        for path, text in contents.items():
            (files / path).write_text(text)
        for path, target in links.items():
            (files / path).symlink_to(target)
        self.runtime.socket = _SOCKET
        self.kubelet, self.runtime.daemon = Unit("kubelet", self), Unit("containerd", self)

    def _containerd_configuration(self) -> str:
        """Return containerd's default configuration with the documents' changes, and with the disk's directory."""
        text = run(str(self._containerd / "containerd"), "config", "default")
        (pause,) = (name for name in own.image_names(self._kubeadm, OLD) if "/pause:" in name)
        changes = {
            r"(?m)^root = .*": f"root = '{self.directory}/runtime/root'",
            "SystemdCgroup = false": "SystemdCgroup = true",
            r"(?m)( sandbox =) .*": rf"\1 '{pause}'",
        }
        for old, new in changes.items():
            text, count = re.subn(old, new, text)
            assert count == 1, f"containerd's default configuration has {old} {count} times"
        return text

    def _start_script(self, command: Sequence[str]) -> str:
        # What this machine has there is not the guest's.
        theirs = "/etc/systemd/system /etc/modules-load.d /etc/sysctl.d /etc/cni /etc/kubernetes /usr/lib/modules"
        theirs += " /usr/bin/containerd* /usr/bin/ctr"
        copy = f"rm -rf {theirs}\ncp --archive {self.directory}/files/. /"
        return initrd.start_script(["exec", *command], str(PROJECT), ENVIRONMENT, before=copy)

    def _kubelet_configuration(self, cgroups: str) -> dict[str, Any]:
        return {"cgroupRoot": cgroups}  # kubeadm makes it


class KubeadmCluster(Cluster):
    """A cluster whose only node has the control plane."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        """``directory`` gets all files."""
        super().__init__(parts.cluster, directory, "")
        self.programs_of = parts.kubeadm
        """The directory of each version's programs."""
        archives = [parts.cluster.image, directory / "busybox.tar"]
        for version in (NEW, OLD):
            archives += own.write_images(parts, version, directory)
        self.node = KubeadmNode(parts, self.control_plane, directory / "machines/guest", archives)
        self.machines.append(self.node)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, which :meth:`administer` copies from the node."""
        return self.directory / "admin.conf"

    @property
    def api(self) -> Api:
        """The administrator's requests to the API server."""
        content = yaml.safe_load(self.kubeconfig.read_text())
        encoded = content["clusters"][0]["cluster"] | content["users"][0]["user"]
        names = ("certificate-authority-data", "client-certificate-data", "client-key-data")
        files = [self.directory / name for name in names]
        for file in files:
            file.write_bytes(base64.b64decode(encoded[file.name]))
        return Api(self.node.address, _PORT, files[0], Certificate(*files[1:]))

    def administer(self) -> None:
        """Copy the administrator's kubeconfig, as kubeadm's output says."""
        self.kubeconfig.write_text(self.node.run("cat", "/etc/kubernetes/admin.conf", seconds=SLOW))

    def tails(self) -> Iterator[tuple[str, str]]:
        """Yield name and end of the log of each unit."""
        for daemon in (self.node.containerd, self.node.kubelet):
            yield daemon.name, daemon.tail()
