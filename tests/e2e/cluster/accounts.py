"""Service accounts with a role, for programs outside pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster.api import CORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.cluster.api import Api

_GROUP: Final = "rbac.authorization.k8s.io"
_RBAC: Final = f"/apis/{_GROUP}/v1"
_DAY: Final = 86400


def grant(api: Api, name: str, subject: dict[str, Any], rules: Iterable[tuple[str, str, str]]) -> None:
    """Create a ClusterRole and its binding to a subject; a rule is API group, resource and verbs."""
    role = [{"apiGroups": [group], "resources": [resource], "verbs": verbs.split()} for group, resource, verbs in rules]
    api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": role})
    reference = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    api.create(f"{_RBAC}/clusterrolebindings", binding)


def token(api: Api, name: str, rules: Iterable[tuple[str, str, str]], namespace: str = "default") -> str:
    """Create a service account with these rights, and return a token of it."""
    accounts = f"{CORE}/namespaces/{namespace}/serviceaccounts"
    api.create(accounts, {"metadata": {"name": name}})
    grant(api, name, {"kind": "ServiceAccount", "namespace": namespace, "name": name}, rules)
    answer = api.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": _DAY}})
    return str(answer["status"]["token"])
