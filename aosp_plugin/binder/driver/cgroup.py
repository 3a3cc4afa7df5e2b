"""Which pod and container a process is in, according to its cgroup."""

import re

_UID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
"""A UUID, or the MD5 sum that static pods have (pkg/kubelet/config/common.go ``applyDefaults``)."""
_POD = re.compile(rf"[/-]pod({_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER = re.compile(r"[/:](?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?(?=[/:]|$)")


def parse_cgroup(text: str) -> tuple[str, str]:
    """Return container ID and pod UID from the text of /proc/PID/cgroup; empty if the text does not show them.

    The kubelet names the cgroup of a pod pod<UID>, or with systemd kubepods-burstable-pod<UID, _ for ->.slice
    (pkg/kubelet/cm, cgroup_manager_linux.go). The runtime's cgroup in it is <ID> or <runtime>-<ID>.scope. Of nested
    pods the outermost counts. A reader in a cgroup namespace sees ``..`` in place of the common part of the path, so
    that its own pod is not shown.
    """
    outside_pods = ""
    for line in text.splitlines():
        pod = _POD.search(line)
        container = _CONTAINER.search(line, pod.end() if pod else 0)
        container_id = container[1] if container else ""
        if pod:
            return container_id, pod[1].replace("_", "-")
        outside_pods = outside_pods or container_id
    return outside_pods, ""
