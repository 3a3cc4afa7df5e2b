"""The Helm chart renders its values, and refuses wrong ones."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.release import chart as release_chart
from hack.release import source
from tests.e2e.deploy.conftest import Accept, Render, Tool
from tests.e2e.deploy.manifests import Manifest, every, plugin_pod, pod_of, the
from tests.e2e.deploy.parts import CHART, DEPLOY

pytestmark = pytest.mark.core

EVERYTHING: Final = yaml.safe_load((CHART / "ci" / "everything-values.yaml").read_text())


@pytest.fixture(scope="module")
def everything(charted: Render) -> list[Manifest]:
    """Return what the chart renders with a value for each key."""
    return charted("everything")


def named(suffix: str, rendered: list[Manifest]) -> Manifest:
    """Return the manifest whose name ends so."""
    (found,) = (manifest for manifest in rendered if manifest["metadata"]["name"].endswith(suffix))
    return found


def test_each_value_appears_in_the_manifests(everything: list[Manifest]) -> None:
    text = yaml.safe_dump_all(everything, width=1000)
    assert [value for value in _leaves(EVERYTHING) if value not in text] == []


def _leaves(values: Any) -> list[str]:
    """Return the texts and numbers in values, and the names in mappings of labels and the like."""
    if isinstance(values, dict | list):
        items = values.values() if isinstance(values, dict) else values
        return [leaf for value in items for leaf in _leaves(value)]
    return [] if isinstance(values, bool) or not values else [str(values).strip()]


def test_each_object_has_the_common_labels_and_no_selector_has_them(everything: list[Manifest]) -> None:
    """A selector cannot be changed."""
    common, spec = EVERYTHING["commonLabels"].items(), the("DaemonSet", everything)["spec"]
    labelled = [*everything, spec["template"]]
    assert [item for item in labelled if not common <= item["metadata"].get("labels", {}).items()] == []
    assert not common <= spec["selector"]["matchLabels"].items()


def test_pod_monitor_and_network_policy_select_the_pods_of_the_plugin(
    everything: list[Manifest], charted: Render
) -> None:
    """The policy can be left out."""
    daemon_set, monitor = the("DaemonSet", everything), the("PodMonitor", everything)
    labels = daemon_set["spec"]["template"]["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert the("NetworkPolicy", everything)["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert monitor["metadata"]["namespace"] == daemon_set["metadata"]["namespace"]
    assert "namespaceSelector" not in monitor["spec"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert EVERYTHING["podMonitor"]["endpoint"].items() <= endpoint.items()
    assert every("NetworkPolicy", charted("default", "networkPolicy.enabled=false")) == []


def test_what_is_set_in_two_places_is_there_once_and_the_more_special_one_counts(charted: Render) -> None:
    label, version = {"team": "phones"}, {"app.kubernetes.io/version": "x"}
    annotations = {"kubectl.kubernetes.io/default-container": "provisioner", "checksum/config": "x"}
    endpoint = {"interval": "5s", "relabelings": [{"targetLabel": "a"}]}
    parts_of = {
        "commonLabels": {"team": "all", "zone": "a"},
        "podLabels": label,
        "podAnnotations": annotations,
        "podMonitor": {"enabled": True, "labels": label | version, "endpoint": endpoint},
        "prometheusRule": {"enabled": True, "labels": label | version},
        "dashboard": {"enabled": True, "labels": label | version},
    }
    options = [word for name, value in parts_of.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    rendered = charted("provision", "", *options)
    pod = the("DaemonSet", rendered)["spec"]["template"]["metadata"]
    assert annotations.items() <= pod["annotations"].items()
    assert (label | {"zone": "a"}).items() <= pod["labels"].items()
    for found in (the("PodMonitor", rendered), the("PrometheusRule", rendered), named("-dashboard", rendered)):
        assert (label | version | {"zone": "a"}).items() <= found["metadata"]["labels"].items()
    (found,) = the("PodMonitor", rendered)["spec"]["podMetricsEndpoints"]
    targets = [each["targetLabel"] for each in found["relabelings"]]
    assert (found["port"], found["interval"], targets) == ("http", "5s", ["node", "a"])


def test_helm_requires_an_image_and_says_what_to_do_about_it(helm: Tool) -> None:
    with pytest.raises(AssertionError, match=r"(?s)image\.repository is not set.*make image.*=localhost/aosp-device"):
        helm("template", "phones", str(CHART))


def test_helm_renders_dashboard_and_profiles_for_phones(everything: list[Manifest]) -> None:
    files = (
        CHART / "files" / "dashboard.json",
        DEPLOY / "apparmor" / "aosp-phone",
        DEPLOY / "seccomp" / "aosp-phone.json",
    )
    rendered = named("-dashboard", everything)["data"] | named("-phone-profile", everything)["data"]
    assert [text.strip() for text in rendered.values()] == [file.read_text().strip() for file in files]


def test_alerts_have_no_links_without_a_runbook(charted: Render) -> None:
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    assert the("PrometheusRule", charted("default", "prometheusRule.enabled=true"))["spec"] == rules


def test_values_leave_alerts_out_and_replace_expressions_times_labels_and_annotations(
    everything: list[Manifest],
) -> None:
    values = EVERYTHING["prometheusRule"]
    (group,) = the("PrometheusRule", everything)["spec"]["groups"]
    (unchanged,) = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    rules, own = ({rule["alert"]: rule for rule in each["rules"]} for each in (group, unchanged))
    assert own.keys() - rules.keys() == values["disabled"].keys()
    for name, rule in rules.items():
        custom = values["customRules"].get(name, {})
        link = {"runbook_url": f"{EVERYTHING['config']['runbook_url']}#{name.lower()}"}
        assert rule == own[name] | custom | {
            "labels": own[name]["labels"] | values["additionalRuleLabels"] | custom.get("labels", {}),
            "annotations": own[name]["annotations"] | link | custom.get("annotations", {}),
        }


def test_nothing_is_privileged_after_an_init_container_that_provisions(charted: Render) -> None:
    image = "image.repository=example.com/a,image.tag=v1,resources.limits.memory=1Gi,config.log_level=debug"
    pod = plugin_pod(charted("provision", f"{image},provision.mode=init-container"))
    (init,), (container,) = pod["initContainers"], pod["containers"]
    assert (init["image"], init["resources"]["limits"]["memory"]) == ("example.com/a:v1", "1Gi")
    assert (init["securityContext"]["privileged"], container["securityContext"]["privileged"]) == (True, False)
    assert "hostPID" not in pod
    assert [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["device-plugins"]
    assert {"name": "AOSP_PLUGIN_PROVISIONED_BY", "value": "command"} in container["env"]


@pytest.mark.parametrize(("values", "number"), [("everything", 1), ("kinds", 3)])
def test_a_pod_without_rights_checks_each_configuration_before_an_upgrade(
    values: str, number: int, charted: Render, accepted: Accept, tmp_path: Path
) -> None:
    rendered = accepted(charted(values))
    job = the("Job", rendered)
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade,pre-rollback"
    assert job["spec"]["backoffLimit"] == 0
    assert [code for code, _ in _checked(rendered, tmp_path)] == [0] * number
    pod, labels = pod_of(job), job["spec"]["template"]["metadata"]["labels"].items()
    assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
    for daemon_set in every("DaemonSet", rendered):
        assert not daemon_set["spec"]["selector"]["matchLabels"].items() <= labels


def test_the_check_fails_for_the_kind_of_nodes_with_a_wrong_configuration(charted: Render, tmp_path: Path) -> None:
    kinds = ",".join(f"nodes[{i}].name=k{i},nodes[{i}].nodeSelector.k=v{i}" for i in range(3))
    rendered = charted("kinds", f"{kinds},nodes[1].config.container_paths[0]=/proc/binder")
    results = _checked(rendered, tmp_path)
    assert [code for code, _ in results] == [0, 2, 0]
    assert "container_paths" in results[1][1]


def test_the_check_knows_the_address_of_the_plugin(charted: Render, tmp_path: Path) -> None:
    """The page cannot have all addresses of a port of which metrics and probes have one."""
    ((code, message),) = _checked(charted("default", "port=9479,config.status_listen=0.0.0.0:9479"), tmp_path)
    assert (code, "cannot have the address 0.0.0.0:9479" in message) == (2, True), message


def test_pods_that_end_tolerate_named_taints_but_no_node_that_is_not_ready(charted: Render) -> None:
    rendered = charted(
        "default", "tolerations[0].operator=Exists,tolerations[1].key=phones,tolerations[1].operator=Exists"
    )
    for pod in (pod_of(the("Job", rendered)), the("Pod", rendered)["spec"]):
        everywhere = [each for each in pod["tolerations"] if "key" not in each]
        assert everywhere == [{"operator": "Exists", "effect": "NoSchedule"}]
        assert {"key": "phones", "operator": "Exists"} in pod["tolerations"]
        # Without these, admission lets the pod tolerate such nodes; with their value, they match no taint.
        without = {each["key"]: each.get("value") for each in pod["tolerations"] if each.get("effect") == "NoExecute"}
        assert without.keys() == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        assert all(without.values())


def test_the_name_of_the_check_fits_into_a_label_of_its_pod(charted: Render) -> None:
    assert len(the("Job", charted("default", f"fullnameOverride={'n' * 63}"))["metadata"]["name"]) <= 63


def _checked(rendered: list[Manifest], directory: Path) -> list[tuple[int, str]]:
    """Return exit code and messages of each container that checks a configuration, as the chart runs it."""
    pod = pod_of(the("Job", rendered))
    (name,) = [volume["configMap"]["name"] for volume in pod["volumes"]]
    (files,) = (each["data"] for each in every("ConfigMap", rendered) if each["metadata"]["name"] == name)
    for file, text in files.items():
        (directory / file).write_text(text)
    results = []
    for container in pod["containers"]:
        (mount,) = container["volumeMounts"]
        words = [word.replace(mount["mountPath"], str(directory)) for word in container["args"]]
        command = [sys.executable, "-m", "aosp_plugin", *words]
        variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        variables = {name: value.replace("$(POD_IP)", "192.0.2.1") for name, value in variables.items()}
        environment = os.environ | variables
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        results.append((result.returncode, result.stderr))
    return results


@pytest.mark.parametrize(
    ("values", "changes", "expected"),
    [
        ("provision", "", {"maxSurge": "10%", "maxUnavailable": 0}),
        ("dra", "", {"maxSurge": 0, "maxUnavailable": "10%"}),
        ("default", "hostNetwork=true", {"maxSurge": 0, "maxUnavailable": "10%"}),
        ("default", "updateStrategy.rollingUpdate.maxUnavailable=3", {"maxUnavailable": 3}),
    ],
)
def test_a_new_pod_is_ready_before_the_old_one_ends_unless_a_node_cannot_have_two(
    values: str, changes: str, expected: dict[str, Any], charted: Render
) -> None:
    assert the("DaemonSet", charted(values, changes))["spec"]["updateStrategy"]["rollingUpdate"] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("", {"aosp-device-plugin": False}),
        ("config.phones.count=3", {"aosp-device-plugin": False, "provisioner": True}),
    ],
)
def test_only_a_count_of_phones_adds_a_privileged_container(
    changes: str, expected: dict[str, bool], charted: Render
) -> None:
    pod = plugin_pod(charted("default", changes))
    assert {each["name"]: each["securityContext"]["privileged"] for each in pod["containers"]} == expected


@pytest.mark.parametrize(
    ("changes", "rolls_out"), [("config.log_level=debug", True), ("podMonitor.endpoint.interval=7s", False)]
)
def test_a_changed_configuration_changes_the_pods(changes: str, rolls_out: bool, charted: Render) -> None:  # noqa: FBT001
    before, after = (the("DaemonSet", charted("default", each))["spec"]["template"] for each in ("", changes))
    assert (before != after) == rolls_out


SURGE = "updateStrategy.rollingUpdate.maxSurge=1,updateStrategy.rollingUpdate.maxUnavailable=0"
NODES = "nodes[0].name=a,nodes[0].nodeSelector.k=x"
REFUSED = {
    "provision.mode=init-container,config.phones.count=3,config.recreate=on-start": "requires a privileged plugin",
    "config.phones.count=3,config.verify=probe": "requires a privileged plugin",
    "config.phones.count=3,config.api=dra": "config.phones with api=dra mounts a file system",
    "provision.mode=both": "at '/provision/mode'",
    "provision.enabled=true": "additional properties 'enabled' not allowed",
    "config.provisioned_by=command": "set provision.mode instead",
    "config.phones.count=3,config.phones.directory=/mnt/x": "is not in a volume",
    "config.recreate=on-start": "config.recreate=on-start creates binder devices on the host and requires",
    "config.verify=probe": "config.verify=probe opens binder devices of the host and requires",
    "config.resources[0].verify=probe": "config.verify=probe opens binder devices of the host and requires",
    "config.version=v2": "value must be 'v1'",
    f"config.api=dra,{SURGE}": "choose 0",
    "config.api=dra,dra.classes.aosp\\.io/phone.extendedResource=true": "dra.classes has aosp.io/phone, but no",
    "config.kubelet_dir=/data/kubelet/device-plugins": "set kubelet.rootDir instead",
    "config.pod_resources_socket=/x": "set kubelet.rootDir instead",
    "config.node_events=true,serviceAccount.create=false": "serviceAccount.create=false requires serviceAccount.name",
    "podLabels.app\\.kubernetes\\.io/instance=x": "invalid propertyName 'app.kubernetes.io/instance'",
    "kubelet.rootDir=data": "at '/kubelet/rootDir'",
    "updateStrategy=null": "missing property 'updateStrategy'",
    "port=0": "at '/port'",
    "config.runbook_url=docs/runbook.md": "at '/config/runbook_url'",
    "prometheusRule.disabled.AospPluginX=true": "invalid propertyName 'AospPluginX'",
    "prometheusRule.customRules.AospPluginX.for=1m": "invalid propertyName 'AospPluginX'",
    "prometheusRule.customRules.AospPluginNotRegistered.for=soon": "customRules/AospPluginNotRegistered/for",
    "image.tags=x": "additional properties 'tags' not allowed",
    "networkPolicy.enabled=yes": "at '/networkPolicy/enabled'",
    "nodes[0].name=a": "at '/nodes/0': missing property 'nodeSelector'",
    f"{NODES},nodes[1].name=a,nodes[1].nodeSelector.k=y": "nodes has two entries with the name a",
    f"{NODES},nodes[1].name=b,nodes[1].nodeSelector.k=x": "nodes: a and b may select the same node",
    f"{NODES},nodes[1].name=b,nodes[1].nodeSelector.l=x": "nodes: a and b may select the same node",
    f"{NODES},nodes[0].config.verify=probe": "entry a of nodes: config.verify=probe opens binder devices of the host",
    f"{NODES},nodes[0].config.node_events=true": "entry a of nodes: the rights for node_events are those of all",
    f"{NODES},config.phones.count=9,nodes[0].config.phones.count=3": "config.phones.count=9 has no effect",
    f"hostNetwork=true,{SURGE}": "with hostNetwork the new pod waits for the port of the old one; choose 0",
}
"""Wrong values and Helm's messages."""


@pytest.mark.parametrize(("changes", "message"), REFUSED.items())
def test_helm_refuses_wrong_values_with_the_reason(changes: str, message: str, charted: Render) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        charted("default", changes)


@pytest.mark.parametrize(
    ("values", "resources", "drivers"),
    [
        ("default", ["aosp.io/binder"], set()),
        ("provision", ["aosp.io/phone"], set()),
        ("everything", ["aosp.io/phone", "aosp.io/sidecar"], set()),
        ("dra", ["aosp.io/phone"], {"aosp.io/phone"}),
        (
            "dra-found",
            ["aosp.io/phone", "example.com/tablet", "aosp.io/sidecar"],
            {"aosp.io/phone", "example.com/tablet"},
        ),
    ],
)
def test_helm_test_runs_an_unprivileged_pod_for_each_resource_where_the_plugin_runs(
    values: str, resources: list[str], drivers: set[str], charted: Render, accepted: Accept
) -> None:
    """The DaemonSet does not adopt it."""
    rendered = charted(values)
    daemon_set, plugin = the("DaemonSet", rendered), plugin_pod(rendered)
    for pod, resource in zip(every("Pod", accepted(rendered)), resources, strict=True):
        spec, metadata = pod["spec"], pod["metadata"]
        (container,) = spec["containers"]
        assert metadata["annotations"]["helm.sh/hook"] == "test"
        assert not daemon_set["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items()
        if resource in drivers:
            _require_claim(rendered, pod)
        else:
            assert container["resources"]["limits"][resource] == "1"
        assert f"--resource={resource}" in container["command"]
        assert container["image"] == plugin["containers"][0]["image"]
        for name in ("nodeSelector", "affinity", "imagePullSecrets"):
            assert spec.get(name) == plugin.get(name), name
        assert container["securityContext"]["privileged"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert [volume["configMap"]["name"] for volume in spec["volumes"]] == [daemon_set["metadata"]["name"]]


def _require_claim(rendered: list[Manifest], pod: Manifest) -> None:
    """Check that a test pod has a device by a claim template, which is a hook before the pods."""
    (claim,) = pod["spec"]["resourceClaims"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    templates = {item["metadata"]["name"]: item for item in every("ResourceClaimTemplate", rendered)}
    template = templates[claim["resourceClaimTemplateName"]]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    classes = {manifest["metadata"]["name"] for manifest in every("DeviceClass", rendered)}
    assert request["exactly"]["deviceClassName"] in classes
    notes = template["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "test"
    assert int(notes["helm.sh/hook-weight"]) < 0


OF_EACH_KIND: Final = {"ConfigMap", "DaemonSet", "Job", "Pod", "ResourceClaimTemplate"}


@pytest.fixture(scope="module")
def kinds(charted: Render, accepted: Accept) -> list[Manifest]:
    """Return what the chart renders with several kinds of nodes, in the host's network."""
    return accepted(charted("kinds"))


KINDS: Final = yaml.safe_load((CHART / "ci" / "kinds-values.yaml").read_text())


@pytest.mark.parametrize("entry", KINDS["nodes"], ids=lambda entry: entry["name"])
def test_each_kind_of_nodes_has_a_daemon_set_a_configuration_and_a_test(
    entry: dict[str, Any], kinds: list[Manifest]
) -> None:
    found = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in kinds}
    name = f"aosp-device-plugin-{entry['name']}"
    config = yaml.safe_load(found["ConfigMap", name]["data"]["config.yaml"])
    common = {"version": "v1", "log_format": "json", "verify": "binder"} | KINDS["config"]
    phones = common["phones"] | entry["config"].get("phones", {})
    assert config == common | entry["config"] | {"phones": phones}
    template = found["DaemonSet", name]["spec"]["template"]
    pod, test = template["spec"], found["Pod", f"{name}-test-0"]["spec"]
    for spec in (pod, test):
        assert spec["nodeSelector"] == {"aosp.io/binder": "true"} | entry["nodeSelector"]
        assert {"name": name, "defaultMode": 0o644} in [volume.get("configMap") for volume in spec["volumes"]]
    limits = {"cpu": "1", "memory": "256Mi"} | entry.get("resources", {}).get("limits", {})
    assert pod["containers"][0]["resources"]["limits"] == limits
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert ("resourceClaims" in test) == ("token" in str(pod["volumes"])) == ("api" in config)
    selectors = [each["spec"]["selector"]["matchLabels"].items() for each in every("DaemonSet", kinds)]
    assert sum(selector <= template["metadata"]["labels"].items() for selector in selectors) == 1


def test_objects_that_are_not_of_a_kind_are_as_without_kinds(
    kinds: list[Manifest], charted: Render, accepted: Accept
) -> None:
    """A NetworkPolicy has no effect on pods in the host's network."""
    others, dra = (
        [manifest for manifest in rendered if manifest["kind"] not in OF_EACH_KIND | {"NetworkPolicy"}]
        for rendered in (kinds, accepted(charted("dra")))
    )
    assert others == dra
    assert every("NetworkPolicy", kinds) == []


def test_the_chart_of_a_release_renders_its_image_without_any_value(helm: Tool, tmp_path: Path) -> None:
    """It has the files that Helm packs, and no tests."""
    digest = f"sha256:{'1' * 64}"
    helm("package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.glob("*.tgz")
    (tmp_path / "release").mkdir()
    image, home = "registry.example.com/plugin", "https://git.example.com/plugin"
    released = release_chart.pack(source.read(source.ROOT), tmp_path / "release", image, digest, home)
    with tarfile.open(packed) as first, tarfile.open(released) as second:
        assert sorted(first.getnames()) == sorted(second.getnames())
        assert not [name for name in second.getnames() if re.search(r"/ci/|_test\.yaml$", name)]
    helm("lint", "--strict", str(released))
    rendered = helm("template", "aosp-device-plugin", str(released))
    assert set(re.findall(r"^ +image: (\S+)$", rendered, re.MULTILINE)) == {f"{image}@{digest}"}
    assert yaml.safe_load(helm("show", "chart", str(released)))["home"] == home
