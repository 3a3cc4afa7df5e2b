"""The API server and the operator accept what Helm and kustomize render, and the latter is rendered from the chart."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from aosp_plugin.config import keys, sources
from hack import manifests as manifests_of_chart
from hack import phone_seccomp
from tests.e2e.common import packages
from tests.e2e.deploy import parts
from tests.e2e.deploy.conftest import Accept, Render, Tool
from tests.e2e.deploy.manifests import (
    VALUES,
    Manifest,
    configurations,
    every,
    plugin_pod,
    pod_of,
    the,
    values_file,
)
from tests.e2e.deploy.parts import CHART, DEPLOY, run

pytestmark = pytest.mark.core

EXAMPLES = {
    "pod.yaml": ["Pod"],
    "redroid.yaml": ["Pod"],
    "redroid-statefulset.yaml": ["Service", "NetworkPolicy", "StatefulSet"],
    "dra/attributes.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/extended-resource.yaml": ["Pod"],
    "dra/numa.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/parameters.yaml": ["DeviceClass", "ResourceClaimTemplate", "Pod"],
    "dra/phone.yaml": ["ResourceClaimTemplate", "Pod"],
    "dra/shared.yaml": ["ResourceClaim", "Pod", "Pod"],
    "../remove.yaml": ["ConfigMap", "DaemonSet"],
}
"""The kinds of the objects in each manifest that is used as it is."""
ANY_CHART = pytest.mark.parametrize(
    ("values", "changes"), [*((name, "") for name in VALUES), ("provision", "provision.mode=init-container")]
)


def test_the_yaml_for_kubectl_is_what_the_chart_renders() -> None:
    outdated = [path.name for path, text in manifests_of_chart.files().items() if path.read_text() != text]
    assert not outdated, "run `make generate`"


@pytest.mark.parametrize(
    ("name", "count"), {"base": 4, "provision": 4, "privileged": 4, "dra": 11, "examples/node": 12}.items()
)
def test_the_api_server_accepts_a_directory_for_kustomize(
    name: str, count: int, kustomized: Render, accepted: Accept
) -> None:
    """The configuration is that of the directory: kustomize gives its ConfigMap another name, and the pod finds it."""
    rendered = accepted(kustomized(name))
    assert len(rendered) == count
    pod, config = plugin_pod(rendered), the("ConfigMap", rendered)
    assert config["data"]["config.yaml"] == (DEPLOY / name / "config.yaml").read_text()
    assert config["metadata"]["name"] in [each.get("configMap", {}).get("name") for each in pod["volumes"]]
    assert config["metadata"]["labels"]["app.kubernetes.io/name"] == "aosp-device-plugin"


@pytest.mark.parametrize(("name", "kinds"), EXAMPLES.items())
def test_the_api_server_accepts_an_example(name: str, kinds: list[str], accepted: Accept) -> None:
    manifests = accepted(yaml.safe_load_all((DEPLOY / "examples" / name).read_text()))
    assert [manifest["kind"] for manifest in manifests] == kinds


@pytest.mark.parametrize("values", VALUES)
def test_helm_lint_accepts_the_chart(values: str, helm: Tool) -> None:
    helm("lint", "--strict", str(CHART), *values_file("default"), *values_file(values))


@ANY_CHART
def test_the_api_server_accepts_the_chart_and_no_pod_has_variables_of_services(
    values: str, changes: str, charted: Render, accepted: Accept
) -> None:
    rendered = accepted(charted(values, changes))
    for manifest in (each for kind in ("DaemonSet", "Job", "Pod") for each in every(kind, rendered)):
        assert pod_of(manifest)["enableServiceLinks"] is False, manifest["metadata"]["name"]


@ANY_CHART
def test_the_plugin_accepts_the_configuration(values: str, changes: str, charted: Render, tmp_path: Path) -> None:
    for text in configurations(charted(values, changes)):
        _load(text, tmp_path)


def test_the_plugin_finds_unchanged_numbers_in_the_configuration(charted: Render, tmp_path: Path) -> None:
    (text,) = configurations(charted("default", "config.sets.size=3,config.sets.first=999999999"))
    assert _load(text, tmp_path).resources[0].sets == keys.NumberedSets(size=3, first=999_999_999)


def _load(text: str, directory: Path) -> keys.Config:
    """Return the plugin's configuration in a file with this text."""
    path = directory / "config.yaml"
    path.write_text(text)
    return sources.load({}, {}, str(path))[0]


def test_the_api_server_refuses_unknown_fields(kustomized: Render, accepted: Accept) -> None:
    """Counter-example."""
    daemon_set = the("DaemonSet", kustomized("base"))
    pod_of(daemon_set)["hostPIDs"] = True
    with pytest.raises(AssertionError, match="unknown field"):
        accepted([daemon_set])


def test_the_api_server_refuses_bidirectional_propagation_without_privileged(
    kustomized: Render, accepted: Accept
) -> None:
    """Counter-example."""
    daemon_set = the("DaemonSet", kustomized("provision"))
    pod_of(daemon_set)["containers"][1]["securityContext"]["privileged"] = False
    with pytest.raises(AssertionError, match="Bidirectional mount propagation is available only to privileged"):
        accepted([daemon_set])


def test_the_crds_of_the_operator_accept_the_chart_and_refuse_unknown_fields(charted: Render) -> None:
    rendered = charted("everything")
    rule = the("PrometheusRule", rendered)
    assert [*_problems(rule), *_problems(the("PodMonitor", rendered))] == []
    rule["spec"]["groups"][0]["rules"][0]["expression"] = "up"
    (problem,) = _problems(rule)
    assert "expression" in problem


def _problems(manifest: Manifest) -> list[str]:
    """Validate an object of the Prometheus operator with its CRD."""
    path = parts.operator_crds() / f"monitoring.coreos.com_{manifest['kind'].lower()}s.yaml"
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    assert manifest["apiVersion"] == f"monitoring.coreos.com/{version['name']}"
    validator = Draft202012Validator(_closed(version["schema"]["openAPIV3Schema"]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


def _closed(schema: Any) -> Any:
    """Return a CRD's schema that refuses unknown fields, which an API server drops silently."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def test_the_apparmor_profile_for_phones_is_parsed_without_a_warning() -> None:
    packages.install(("apparmor",))
    features = "/etc/apparmor.d/abi/3.0"  # instead of those of this machine's kernel, which may have no AppArmor
    command = ("apparmor_parser", "--skip-kernel-load", "--skip-cache", "--kernel-features", features)
    profile = (DEPLOY / "apparmor" / "aosp-phone").read_text()
    run(*command, "--warn=all", "--Werror", text=profile)
    with pytest.raises(AssertionError, match="syntax error"):
        run(*command, text=profile.replace("deny mount", "deny mounts"))


def test_the_seccomp_profile_for_phones_follows_from_the_default_of_this_containerd() -> None:
    assert phone_seccomp.PROFILE.read_text() == phone_seccomp.profile(phone_seccomp.default())
