"""Where Kubernetes distributions have the directories that the plugin mounts, according to their documents and sources.

``deploy/chart/distributions`` has a values file for each; its comments name the source of each fact. No distribution
has been run: tests/e2e/deploy/items_distributions.py compares what the values render with these facts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "deploy/chart/distributions"

DEVICE_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
"""The kubelet has it compiled in, whatever its --root-dir: staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/
constants.go, and https://github.com/kubernetes/kubernetes/issues/120626."""

_CDI: Final = ("/etc/cdi", "/run/cdi")
"""containerd's and CRI-O's defaults. /var/run is a link to /run."""


class Layout(NamedTuple):
    """What decides about the mounts of the plugin's pod."""

    name: str
    title: str
    root: str = "/var/lib/kubelet"
    """The kubelet's --root-dir, with pod-resources, plugins_registry and plugins."""
    cdi: tuple[str, ...] = _CDI
    """Directories in which the runtime reads CDI files, if CDI is on."""
    read_only: tuple[str, ...] = ()
    """Directories of the host in which no pod can create files."""
    selinux: str = ""
    """The type that the plugin requires without privilege, where SELinux is enforcing by default."""
    note: str = ""
    """What else an operator has to know, in Markdown, for docs/compatibility.md."""


LAYOUTS: Final = (
    Layout("k3s", "k3s"),
    Layout("rke2", "RKE2", note="with a CIS profile only in `kube-system`"),
    Layout("k0s", "k0s", root="/var/lib/k0s/kubelet"),
    Layout("microk8s", "MicroK8s", root="/var/snap/microk8s/common/var/lib/kubelet"),
    Layout(
        "talos",
        "Talos Linux",
        cdi=("/run/cdi",),
        read_only=("/etc", "/usr", "/opt"),
        note="[no binder in its kernel](hosts.md#have-neither); only in `kube-system`",
    ),
    Layout(
        "bottlerocket",
        "Bottlerocket",
        read_only=("/etc", "/usr"),
        note="[no binder in its kernel](hosts.md#have-neither)",
    ),
    Layout("eks", "EKS", note="[Ubuntu's AMIs](hosts.md#have-binderfs); not Fargate"),
    Layout(
        "gke",
        "GKE Standard",
        read_only=("/usr", "/opt"),
        note="[the node image Ubuntu](hosts.md#have-binderfs); not Autopilot",
    ),
    Layout(
        "openshift",
        "OpenShift",
        read_only=("/usr",),
        selinux="container_device_plugin_t",
        note="[no binder in its kernel](hosts.md#have-neither); requires the right to use the SCC `privileged`",
    ),
)


def values_file(layout: Layout) -> Path:
    """Return the values file of a distribution."""
    return DIRECTORY / f"{layout.name}.yaml"
