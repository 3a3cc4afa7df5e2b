"""What `api: dra`, Events on the Node and the startup taint add to the Helm chart: tokens, rights and policies."""

from typing import Any, Final

import pytest

from tests.e2e.deploy.conftest import Accept, Render, Tool
from tests.e2e.deploy.manifests import Manifest, every, plugin_pod, the, values_file
from tests.e2e.deploy.parts import CHART

pytestmark = pytest.mark.core

RIGHTS: Final = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"}
CLUSTER_KINDS: Final = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "DeviceClass"}
"""Kinds that only DRA requires."""
ROOT: Final = "/data/kubelet"
"""The kubelet's directory in the values `dra-found`."""


def kinds(rendered: list[Manifest]) -> set[str]:
    return {manifest["kind"] for manifest in rendered}


def has_token(rendered: list[Manifest]) -> bool:
    """Return whether the container of the plugin has a token, and require that no other one has it."""
    pod = plugin_pod(rendered)
    assert pod["automountServiceAccountToken"] is False
    of_plugin, *others = (
        [mount for mount in container["volumeMounts"] if mount["name"] == "token"]
        for container in (*pod["containers"], *pod.get("initContainers", ()))
    )
    assert not any(others)
    assert len(of_plugin) == len([volume for volume in pod["volumes"] if volume["name"] == "token"])
    return bool(of_plugin)


def test_dra_adds_a_service_account_with_a_token(charted: Render) -> None:
    rendered = charted("dra-found")
    assert the("ServiceAccount", rendered)["metadata"]["name"] == "phones"
    assert plugin_pod(rendered)["serviceAccountName"] == "phones"
    assert has_token(rendered)


def test_dra_adds_directories_and_no_privilege(charted: Render) -> None:
    pod = plugin_pod(charted("dra-found"))
    (container,) = pod["containers"]
    assert container["securityContext"]["privileged"] is False
    paths = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    kubelets = {f"{ROOT}/{name}" for name in ("device-plugins", "plugins_registry", "plugins")}
    assert paths == {*kubelets, "/host/var/run/cdi", "/host/dev/char"}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    elsewhere = {
        "device-plugins": "/var/lib/kubelet/device-plugins",
        "config": None,
        "token": None,
        "pod-resources": f"{ROOT}/pod-resources",
    }
    for mount in container["volumeMounts"]:
        expected = elsewhere.get(mount["name"], mount["mountPath"].removeprefix("/host"))
        assert hosts.get(mount["name"]) == expected, mount


def test_dra_adds_policies_for_the_account_and_the_drivers(charted: Render) -> None:
    texts = [str(policy["spec"]) for policy in every("ValidatingAdmissionPolicy", charted("dra-found"))]
    assert "system:serviceaccount:kube-system:phones" in texts[0]
    assert [text.count('in ["phone.aosp.io","tablet.example.com"]') for text in texts] == [1, 2]


def test_dra_adds_a_class_for_each_resource(charted: Render) -> None:
    phone, tablet = (manifest["spec"] for manifest in every("DeviceClass", charted("dra-found")))
    assert phone["extendedResourceName"] == "aosp.io/phone"
    parameters = phone["config"][0]["opaque"]["parameters"]
    assert parameters.items() >= {"kind": "PhoneParameters", "environment": {"LOCALE": "en_US"}}.items()
    assert tablet == {"selectors": [{"cel": {"expression": 'device.driver == "tablet.example.com"'}}]}
    assert "DeviceClass" not in kinds(charted("dra-found", "dra.deviceClasses=false"))


def test_dra_opens_the_way_to_the_api_server(charted: Render) -> None:
    expected = {"ports": [{"protocol": "TCP", "port": 8443}], "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}
    assert the("NetworkPolicy", charted("dra-found"))["spec"]["egress"] == [expected]


@pytest.mark.parametrize("values", ["default", "provision", "everything"])
def test_without_dra_there_is_no_token_no_cluster_wide_object_and_no_directory_of_drivers(
    values: str, charted: Render
) -> None:
    rendered = charted(values)
    assert not kinds(rendered) & CLUSTER_KINDS
    assert not has_token(rendered)
    assert "plugins_registry" not in str(plugin_pod(rendered))


def test_events_and_the_taint_add_a_token_their_rights_and_a_policy_for_each(charted: Render, accepted: Accept) -> None:
    rendered = accepted(charted("node"))
    assert verbs(rendered, "ClusterRole") == {("nodes",): ["get", "patch"]}
    assert verbs(rendered, "Role") == {("events",): ["create"]}
    assert [the(kind, rendered)["metadata"]["namespace"] for kind in ("Role", "RoleBinding")] == ["default"] * 2
    assert has_token(rendered)
    (container,) = plugin_pod(rendered)["containers"]
    assert container["securityContext"]["privileged"] is False
    assert the("NetworkPolicy", rendered)["spec"]["egress"], "the API server is not reachable"
    conditions = [
        policy["spec"]["matchConditions"][0]["expression"] for policy in every("ValidatingAdmissionPolicy", rendered)
    ]
    account = "system:serviceaccount:kube-system:aosp-device-plugin"
    assert [account in condition for condition in conditions] == [True, True]


def verbs(rendered: list[Manifest], kind: str) -> dict[tuple[str, ...], Any]:
    """Return the verbs by resource."""
    return {tuple(rule["resources"]): rule["verbs"] for rule in the(kind, rendered)["rules"]}


@pytest.mark.parametrize(
    ("values", "change", "expected"),
    [
        ("default", "node_events=true", {"Role", "RoleBinding", "ValidatingAdmissionPolicy"}),
        ("default", "startup_taint=a.io/b", {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"}),
        ("provision", "node_events=true", {"Role", "RoleBinding", "ValidatingAdmissionPolicy"}),
    ],
)
def test_each_key_adds_its_own_rights_only(values: str, change: str, expected: set[str], charted: Render) -> None:
    rendered = charted(values, f"config.{change}")
    assert kinds(rendered) & RIGHTS == expected
    assert has_token(rendered)
    names = [container["name"] for container in plugin_pod(rendered)["containers"]]
    assert names == ["aosp-device-plugin", "provisioner"][: 1 + (values == "provision")]


def test_a_cluster_whose_tokens_have_no_node_name_is_refused(helm: Tool) -> None:
    command = ("template", "phones", str(CHART), *values_file("default"), *values_file("node"))
    with pytest.raises(AssertionError, match=r"require Kubernetes 1\.30"):
        helm(*command, "--kube-version", "1.29.3")


@pytest.mark.parametrize(
    ("values", "changes", "account"), [("dra", ",serviceAccount.name=theirs", "theirs"), ("default", "", "default")]
)
def test_an_existing_service_account_is_used_as_it_is(values: str, changes: str, account: str, charted: Render) -> None:
    rendered = charted(values, f"serviceAccount.create=false{changes}")
    assert "ServiceAccount" not in kinds(rendered)
    assert plugin_pod(rendered)["serviceAccountName"] == account
    if values == "dra":
        assert the("ClusterRoleBinding", rendered)["subjects"][0]["name"] == account
        assert f"system:serviceaccount:kube-system:{account}" in str(the("ValidatingAdmissionPolicy", rendered))
