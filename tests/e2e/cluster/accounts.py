"""Service accounts with a role, for programs outside pods."""

from collections.abc import Iterable
from typing import Final

from tests.e2e.cluster.api import CORE, Api

_GROUP: Final = "rbac.authorization.k8s.io"
_RBAC: Final = f"/apis/{_GROUP}/v1"
_DAY: Final = 86400


def token(api: Api, name: str, rules: Iterable[tuple[str, str, str]]) -> str:
    """Create a service account with rights, and return a token of it; a rule is API group, resource and verbs."""
    accounts = f"{CORE}/namespaces/default/serviceaccounts"
    api.create(accounts, {"metadata": {"name": name}})
    role = [{"apiGroups": [group], "resources": [resource], "verbs": verbs.split()} for group, resource, verbs in rules]
    api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": role})
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": name}
    reference = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    api.create(f"{_RBAC}/clusterrolebindings", binding)
    answer = api.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": _DAY}})
    return str(answer["status"]["token"])
