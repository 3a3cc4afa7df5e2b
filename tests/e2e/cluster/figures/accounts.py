"""Service accounts of drivers outside pods, and the API server's audit log of their requests."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.control_plane import ControlPlane

_NAMESPACE: Final = "kube-system"
_ROLE: Final = "figures"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_DAY: Final = 86400
_RULES: Final = (
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
)


def create_role(cluster: Cluster) -> None:
    """Create the role that all drivers have."""
    body = {"kind": "ClusterRole", "metadata": {"name": _ROLE}, "rules": list(_RULES)}
    cluster.api.create(f"{_RBAC}/clusterroles", body)


def let_nodes_read_claims(cluster: Cluster) -> None:
    """Let every kubelet read all claims, also those that the node authorizer does not connect with its node."""
    name = "claims-of-nodes"
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    metadata = {"name": name}
    cluster.api.create(f"{_RBAC}/clusterroles", {"kind": "ClusterRole", "metadata": metadata, "rules": [rule]})
    binding = {"kind": "ClusterRoleBinding", "metadata": metadata, "subjects": [group], "roleRef": role}
    cluster.api.create(f"{_RBAC}/clusterrolebindings", binding)


class Account:
    """A service account with the role, and the files with which a process uses it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Create the account, and write token, ca.crt and a kubeconfig."""
        self.user = f"system:serviceaccount:{_NAMESPACE}:{name}"
        self.directory = cluster.directory / "accounts" / name
        """With the files token and ca.crt, as a pod has them."""
        self.kubeconfig = self.directory / "kubeconfig"
        accounts = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts"
        cluster.api.create(accounts, {"kind": "ServiceAccount", "metadata": {"name": name}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": _NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _ROLE}
        binding = {"kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [subject], "roleRef": role}
        cluster.api.create(f"{_RBAC}/clusterrolebindings", binding)
        request = {"kind": "TokenRequest", "spec": {"expirationSeconds": _DAY}}
        token = cluster.api.create(f"{accounts}/{name}/token", request)["status"]["token"]
        authority = cluster.control_plane.authority.root.certificate.read_bytes()
        self.directory.mkdir(parents=True)
        (self.directory / "token").write_text(token)
        (self.directory / "ca.crt").write_bytes(authority)
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "cluster",
                    "cluster": {
                        "server": cluster.control_plane.server,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "cluster",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))


class Audit:
    """The API server's log of the requests of service accounts."""

    def __init__(self, control_plane: ControlPlane, directory: Path) -> None:
        """Have the API server write the log from its next start on. It must not be running."""
        directory.mkdir(parents=True)
        self._log = directory / "audit.log"
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "rules": [
                {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{_NAMESPACE}"]},
                {"level": "None"},
            ],
        }
        path = directory / "audit-policy.yaml"
        path.write_text(yaml.safe_dump(policy))
        control_plane.log_requests(path, self._log)

    @property
    def length(self) -> int:
        """The length of the log, in bytes."""
        return self._log.stat().st_size if self._log.exists() else 0

    def requests(self, user: str, since: int) -> Counter[str]:
        """Return the number of an account's requests by verb and resource, logged after the length ``since``."""
        found = {
            event["auditID"]: f"{event['verb']} {event.get('objectRef', {}).get('resource', event['requestURI'])}"
            for event in self._events(since)
            if event["user"]["username"] == user and event["stage"] == "RequestReceived"
        }
        return Counter(found.values())

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        with self._log.open("rb") as log:
            log.seek(since)
            for line in log:
                yield json.loads(line)
