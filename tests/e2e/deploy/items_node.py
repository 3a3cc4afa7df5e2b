"""Items: what Events on the Node and the startup taint add to the Helm chart."""

from __future__ import annotations

from typing import Any, Final

from tests.e2e.deploy import parts
from tests.e2e.deploy.manifests import VALUES, accepted, charted, has_token, the
from tests.e2e.deploy.parts import CHART, refuses, run

RIGHTS: Final = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"}


def rules(rendered: list[dict[str, Any]], kind: str) -> dict[tuple[str, ...], list[str]]:
    """Return the verbs by resource."""
    return {tuple(rule["resources"]): rule["verbs"] for rule in the(kind, rendered)["rules"]}


def everything_is_rendered() -> None:
    """Both keys add a token, exactly the rights that they use, and a policy for each."""
    rendered = charted(*VALUES["node"])
    assert rules(rendered, "ClusterRole") == {("nodes",): ["get", "patch"]}
    assert rules(rendered, "Role") == {("events",): ["create"]}
    assert (
        the("Role", rendered)["metadata"]["namespace"]
        == the("RoleBinding", rendered)["metadata"]["namespace"]
        == "default"
    )
    pod = the("DaemonSet", rendered)["spec"]["template"]["spec"]
    assert has_token(pod)
    (container,) = pod["containers"]
    assert container["securityContext"]["privileged"] is False
    assert the("NetworkPolicy", rendered)["spec"]["egress"], "the API server is not reachable"
    policies = [manifest for manifest in rendered if manifest["kind"] == "ValidatingAdmissionPolicy"]
    account = "system:serviceaccount:kube-system:aosp-device-plugin"
    assert len(policies) == 2
    assert all(account in policy["spec"]["matchConditions"][0]["expression"] for policy in policies)
    accepted(rendered)


def each_key_has_its_own_rights() -> None:
    """Each key adds its own rights only."""
    for key, kinds in (
        ("node_events=true", {"Role", "RoleBinding", "ValidatingAdmissionPolicy"}),
        ("startup_taint=a.io/b", {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"}),
    ):
        rendered = charted("--set", f"config.{key}")
        assert {manifest["kind"] for manifest in rendered} & RIGHTS == kinds, key
        pod = the("DaemonSet", rendered)["spec"]["template"]["spec"]
        assert has_token(pod), key
    rendered = charted(*VALUES["provision"], "--set", "config.node_events=true")
    pod = the("DaemonSet", rendered)["spec"]["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["aosp-device-plugin", "provisioner"]
    assert has_token(pod)


def old_clusters_are_refused() -> None:
    """A cluster whose tokens have no node name is refused with the version that is required."""
    command = (parts.helm(), "template", "phones", str(CHART), *VALUES["node"], "--kube-version", "1.29.3")
    refuses(lambda: run(*command), "require Kubernetes 1.30")


ITEMS = (everything_is_rendered, each_key_has_its_own_rights, old_clusters_are_refused)
