"""The nodes of a cluster that kubeadm makes: the control plane's, and one for phones, as kubeadm's documents say.

The control plane runs in namespaces of this machine, because kubeadm does not wait for an emulated one: without
systemd, and with the machine's cgroups. The node for phones is a guest with Debian's systemd, containerd's default
configuration and a CNI plugin.
"""

import base64
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.cluster.api import Api
from tests.e2e.cluster.certificates import Certificate
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.guest import ENVIRONMENT, SLOW
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.network import ADDRESS
from tests.e2e.cluster.systemd_guest import SystemdGuest, Unit
from tests.e2e.common.processes import EnteredDaemon, run
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kernel import initrd
from tests.e2e.kubeadm import parts as own
from tests.e2e.kubeadm.parts import NEW, OLD, Parts
from tests.e2e.kubelet import versions
from tests.e2e.kubelet.runtime import network
from tests.e2e.kubelet.standalone import common_configuration

_PODS: Final = "10.244.0.0/16"
_PORT: Final = 6443
_SOCKET: Final = "/run/containerd/containerd.sock"
_KUBELET: Final = """\
kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS"""
_UNIT: Final = f"""\
[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/{_KUBELET}
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
"""
"""kubelet.service and its drop-in of Kubernetes' package, in one."""
_RESOLVER: Final = f"nameserver {ADDRESS}\n"  # nothing answers there
_UNITS: Final = "etc/systemd/system"
_PROGRAMS: Final = ("kubeadm", "kubelet", "kubectl")
_KUBEADM: Final = 600.0
"""The time limit of kubeadm on this machine, in seconds."""
_IGNORED: Final = "SystemVerification"
"""The check that refuses cgroup v1, which this machine may have."""


class ControlPlaneNode(Machine):
    """A node of this machine on which kubeadm makes a control plane; it finds no init there."""

    def __init__(
        self, parts: Parts, control_plane: ControlPlane, directory: Path, cgroups: str, images: Sequence[Path]
    ) -> None:
        super().__init__(1, control_plane, directory, cgroups, parts.cluster.containerd)
        self._images = images

    def use(self, programs: Path) -> None:
        """Use kubeadm and the kubelet of another directory. No kubelet may be running."""
        self._programs = programs
        files = "/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf"
        wait = "".join(f"until [ -e {path} ]; do sleep 1; done; " for path in files)
        script = f"{wait}. /var/lib/kubelet/kubeadm-flags.env; exec {programs}/{_KUBELET}"
        self.kubelet = EnteredDaemon("kubelet", [*self.enter(), "sh", "-c", script], self.directory / "kubelet.log")

    def kubeadm(self, *words: str, programs: Path | None = None) -> str:
        """Run the node's kubeadm, or that of another directory, and return its output."""
        path = f"PATH={programs or self._programs}:{ENVIRONMENT['PATH']}"
        return self.run("env", path, "kubeadm", *words, seconds=_KUBEADM)

    @property
    def options(self) -> list[str]:
        """The options with which kubeadm accepts and configures this node."""
        return [f"--ignore-preflight-errors={_IGNORED}", f"--patches={self._patches}"]

    def configure(self) -> Path:
        """Write the configuration of `kubeadm init`, and return the file."""
        api = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
        registration = {"criSocket": f"unix://{self.runtime.socket}", "ignorePreflightErrors": [_IGNORED]}
        patches = {"directory": str(self._patches)}
        release, pods = versions.VERSIONS[OLD], {"podSubnet": _PODS}
        # The limit of connections belongs to the host, and namespaces cannot set it.
        proxy = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "conntrack": {"maxPerCore": 0, "min": 0}}
        objects = [
            api | {"kind": "InitConfiguration", "nodeRegistration": registration, "patches": patches},
            api | {"kind": "ClusterConfiguration", "kubernetesVersion": release, "networking": pods},
            proxy | {"kind": "KubeProxyConfiguration"},
        ]
        file = self.directory / "kubeadm.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        return file

    @property
    def _patches(self) -> Path:
        return self.directory / "patches"

    def prepare(self) -> None:
        """Give the node files of its own where kubeadm and its pods write, and load the images."""
        for path in ("/etc", "/usr/libexec"):
            upper, work = (self.directory / kind / path[1:] for kind in ("upper", "work"))
            for directory in (upper, work):
                directory.mkdir(parents=True)
            options = f"lowerdir={path},upperdir={upper},workdir={work}"
            self.run("mount", "-t", "overlay", "overlay", "-o", options, path)
        resolver = self.directory / "resolv.conf"
        resolver.write_text(_RESOLVER)
        for file, target in (str(resolver), "/etc/resolv.conf"), ("/dev/null", "/usr/bin/systemctl"):
            self.run("mount", "--bind", file, target)
        self.run("sh", "-ec", "echo 1 >/proc/sys/net/ipv4/ip_forward; rm -rf /etc/kubernetes; mkdir /var/lib/etcd")
        for image in self._images:
            self.runtime.load(image)

    def _configure_kubelet(self) -> None:
        """Write what this node's kubelet needs besides the configuration that kubeadm makes for all."""
        settings = common_configuration(self.runtime.socket) | self.configuration
        del settings["resolvConf"]
        self._patches.mkdir(exist_ok=True)
        (self._patches / "kubeletconfiguration+merge.yaml").write_text(yaml.safe_dump(settings))

    def _kubelet_configuration(self, cgroups: str) -> dict[str, Any]:
        return {"cgroupRoot": cgroups}


class KubeadmNode(SystemdGuest):
    """A guest that kubeadm lets join a cluster."""

    def __init__(self, parts: Parts, control_plane: ControlPlane, directory: Path, images: Sequence[Path]) -> None:
        assert parts.cluster.guest is not None
        super().__init__(parts.cluster.guest, control_plane, directory, images, parts.cluster.containerd)
        self._kubeadm = parts

    def use(self, programs: Path) -> None:
        """Write the files that the guest copies to its root directory when it boots."""
        files = self.directory / "files"
        contents = {
            f"{_UNITS}/kubelet.service": _UNIT,
            "etc/modules-load.d/k8s.conf": "overlay\nbr_netfilter\n",
            "etc/sysctl.d/k8s.conf": "net.ipv4.ip_forward = 1\n",
            "etc/hostname": f"{self.name}\n",
            "etc/resolv.conf": _RESOLVER,
            "etc/cni/net.d/10-pods.conflist": json.dumps(network(self.subnet)),
            "etc/containerd/config.toml": self._containerd_configuration(),
        }
        containerd, modules = self._containerd, self._kubeadm.modules
        (release,) = (path.name for path in (modules / "lib/modules").iterdir())
        links: dict[str, str | Path] = {
            f"usr/lib/modules/{release}": modules / f"lib/modules/{release}",
            f"boot/config-{release}": modules / f"boot/config-{release}",
            "opt/cni/bin": "/usr/lib/cni",
            **{f"usr/bin/{name}": containerd / name for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            **{f"usr/bin/{name}": programs / name for name in _PROGRAMS},
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

    def install(self, programs: Path, *names: str) -> None:
        """Replace programs by those of another directory, while the guest runs."""
        self.run("ln", "-sf", *(str(programs / name) for name in names), "/usr/bin", seconds=SLOW)

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
    """A cluster with a node for the control plane, and one for phones."""

    def __init__(self, parts: Parts, directory: Path, cgroups: str) -> None:
        """``directory`` gets all files, ``cgroups`` is the name of the run's directory of cgroups."""
        super().__init__(parts.cluster, directory, cgroups)
        self.programs_of = parts.kubeadm
        """The directory of each version's programs."""
        images = [parts.cluster.image, directory / "busybox.tar"]
        for version in (NEW, OLD):
            images += own.write_images(parts, version, directory)
        machines = directory / "machines"
        self.control = ControlPlaneNode(parts, self.control_plane, machines / "1", cgroups, images)
        self.node = KubeadmNode(parts, self.control_plane, machines / "guest", images)
        self.machines += [self.control, self.node]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, which :meth:`administer` copies from the node."""
        return self.directory / "admin.conf"

    @property
    def api(self) -> Api:
        """The administrator's requests to the API server."""
        return self._administrator

    def administer(self) -> None:
        """Copy the administrator's kubeconfig, as kubeadm's output says."""
        self.kubeconfig.write_text(self.control.run("cat", "/etc/kubernetes/admin.conf"))
        content = yaml.safe_load(self.kubeconfig.read_text())
        encoded = content["clusters"][0]["cluster"] | content["users"][0]["user"]
        names = ("certificate-authority-data", "client-certificate-data", "client-key-data")
        files = [self.directory / name for name in names]
        for file in files:
            file.write_bytes(base64.b64decode(encoded[file.name]))
        self._administrator = Api(self.control.address, _PORT, files[0], Certificate(*files[1:]))
