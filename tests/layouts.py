"""Where Kubernetes distributions have the directories that the plugin mounts, according to their documents and sources.

No distribution has been run: tests/e2e/deploy/test_distributions.py compares what the chart renders with the values of
a distribution with these facts.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DEVICE_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
"""The kubelet has it compiled in, whatever its --root-dir: staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/
constants.go, and https://github.com/kubernetes/kubernetes/issues/120626."""

_CDI: Final = ("/etc/cdi", "/run/cdi")
"""containerd's and CRI-O's defaults. /var/run is a link to /run."""


class Layout(NamedTuple):
    """What decides about the mounts of the plugin's pod."""

    name: str
    title: str
    values: Mapping[str, Any] = {}
    """The values of the chart that it requires."""
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


_SELINUX_OPTION: Final = "with the option `selinux`, also the values of OpenShift's `securityContext`"
LAYOUTS: Final = (
    # https://github.com/k3s-io/k3s/issues/840, and pkg/agent/templates in its sources, which say nothing about CDI.
    Layout("k3s", "k3s", note=_SELINUX_OPTION),
    # bundle/bin/rke2-uninstall.sh and pkg/rke2/psa.go in https://github.com/rancher/rke2,
    # https://docs.rke2.io/security/selinux.
    Layout("rke2", "RKE2", note=f"with a CIS profile only in `kube-system`; {_SELINUX_OPTION}"),
    # kubelet in --data-dir, or --kubelet-root-dir: https://docs.k0sproject.io/stable/configuration/#kubelet-root-directory.
    # The sockets stay: https://github.com/k0sproject/k0s/issues/7585.
    Layout(
        "k0s",
        "k0s",
        {"kubelet": {"rootDir": "/var/lib/k0s/kubelet"}},
        root="/var/lib/k0s/kubelet",
        note="or your `--kubelet-root-dir`",
    ),
    # microk8s-resources/default-args/kubelet and snap/hooks/install in https://github.com/canonical/microk8s.
    Layout(
        "microk8s",
        "MicroK8s",
        {"kubelet": {"rootDir": "/var/snap/microk8s/common/var/lib/kubelet"}},
        root="/var/snap/microk8s/common/var/lib/kubelet",
    ),
    # pkg/machinery/constants and hack/cri-plugin.part in https://github.com/siderolabs/talos. Its SELinux policy has no
    # type for device plugins: https://docs.siderolabs.com/talos/v1.13/security/selinux.
    Layout(
        "talos",
        "Talos Linux",
        cdi=("/run/cdi",),
        read_only=("/etc", "/usr", "/opt"),
        note="[no binder in its kernel](hosts.md#have-neither); only in `kube-system`; no `seLinuxOptions`",
    ),
    # packages/kubernetes-1.31 and packages/selinux-policy/rules.cil in https://github.com/bottlerocket-os/bottlerocket-core-kit:
    # a container with an unknown SELinux type does not start.
    Layout(
        "bottlerocket",
        "Bottlerocket",
        read_only=("/etc", "/usr"),
        note="[no binder in its kernel](hosts.md#have-neither); no `seLinuxOptions`",
    ),
    # nodeadm/internal/kubelet and nodeadm/doc in https://github.com/awslabs/amazon-eks-ami, for Amazon Linux.
    Layout("eks", "EKS", note="[Ubuntu's AMIs](hosts.md#have-binderfs); not Fargate"),
    # cluster/addons/device-plugins/nvidia-gpu/daemonset.yaml in https://github.com/kubernetes/kubernetes,
    # https://cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security. Whether CDI is on is unknown.
    Layout(
        "gke",
        "GKE Standard",
        read_only=("/usr", "/opt"),
        note="[the node image Ubuntu](hosts.md#have-binderfs); not Autopilot",
    ),
    # https://github.com/openshift/machine-config-operator, modules/security-context-constraints-requiring.adoc in
    # https://github.com/openshift/openshift-docs, container.te in https://github.com/containers/container-selinux.
    Layout(
        "openshift",
        "OpenShift",
        {
            "podAnnotations": {"openshift.io/required-scc": "privileged"},
            "securityContext": {"seLinuxOptions": {"type": "container_device_plugin_t"}},
        },
        read_only=("/usr",),
        selinux="container_device_plugin_t",
        note="[no binder in its kernel](hosts.md#have-neither); `oc adm policy add-scc-to-user privileged "
        "--serviceaccount aosp-device-plugin --namespace NAMESPACE`; with `provision.mode: plugin` without "
        "the SELinux type",
    ),
)
