"""Items: what resources with `api: dra` add to the Helm chart."""

from __future__ import annotations

from typing import Any, Final

from tests.e2e.deploy.manifests import VALUES, charted, has_token, the

PLUGINS: Final = "/var/lib/kubelet/device-plugins"
CLUSTER_KINDS: Final = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "DeviceClass",
}
"""Kinds that only DRA requires."""


def drivers_are_rendered() -> None:
    """`api: dra` adds a service account with its rights and policy, a class for each resource, and directories."""
    rendered = charted(*VALUES["dra-found"])
    daemon_set, policy = the("DaemonSet", rendered), the("ValidatingAdmissionPolicy", rendered)
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    account = the("ServiceAccount", rendered)["metadata"]["name"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("phones", False)
    assert has_token(pod)
    assert account == "phones", account
    assert container["securityContext"]["privileged"] is False, container["securityContext"]
    paths = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    root = "/data/kubelet"
    kubelets = {f"{root}/{name}" for name in ("device-plugins", "plugins_registry", "plugins")}
    assert paths == {*kubelets, "/host/var/run/cdi"}, paths
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    compiled = {"device-plugins": PLUGINS, "config": None, "token": None, "pod-resources": f"{root}/pod-resources"}
    for mount in container["volumeMounts"]:
        expected = compiled.get(mount["name"], mount["mountPath"].removeprefix("/host"))
        assert hosts.get(mount["name"]) == expected, mount
    text = str(policy["spec"])
    assert "system:serviceaccount:kube-system:phones" in text, text
    texts = [str(manifest) for manifest in rendered if manifest["kind"] == "ValidatingAdmissionPolicy"]
    assert [text.count('in ["phone.aosp.io","tablet.example.com"]') for text in texts] == [1, 2], texts
    phone, tablet = (manifest["spec"] for manifest in rendered if manifest["kind"] == "DeviceClass")
    assert phone["extendedResourceName"] == "aosp.io/phone", phone
    opaque = phone["config"][0]["opaque"]
    assert opaque["parameters"]["kind"] == "PhoneParameters", opaque
    assert opaque["parameters"]["environment"] == {"LOCALE": "en_US"}, opaque
    assert tablet == {"selectors": [{"cel": {"expression": 'device.driver == "tablet.example.com"'}}]}, tablet
    egress = the("NetworkPolicy", rendered)["spec"]["egress"]
    expected = {"ports": [{"protocol": "TCP", "port": 8443}], "to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}
    assert egress == [expected], egress
    without = charted(*VALUES["dra-found"], "--set", "dra.deviceClasses=false")
    assert "DeviceClass" not in {manifest["kind"] for manifest in without}


def off_by_default() -> None:
    """Without `api: dra`, there is no token, no cluster-wide object and no directory of drivers."""
    for values in ("default", "provision", "everything"):
        rendered = charted(*VALUES[values])
        assert not {manifest["kind"] for manifest in rendered} & CLUSTER_KINDS, values
        pod = the("DaemonSet", rendered)["spec"]["template"]["spec"]
        assert not has_token(pod), values
        assert "plugins_registry" not in str(pod), values


def require_claim(rendered: list[dict[str, Any]], pod: dict[str, Any]) -> None:
    """Check that a test pod has a device by a claim template, which is a hook before the pods."""
    (claim,) = pod["spec"]["resourceClaims"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}], container
    templates = {item["metadata"]["name"]: item for item in rendered if item["kind"] == "ResourceClaimTemplate"}
    template = templates[claim["resourceClaimTemplateName"]]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    classes = {manifest["metadata"]["name"] for manifest in rendered if manifest["kind"] == "DeviceClass"}
    assert request["exactly"]["deviceClassName"] in classes, request
    notes = template["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "test", notes
    assert int(notes["helm.sh/hook-weight"]) < 0, notes


ITEMS = (drivers_are_rendered, off_by_default)
