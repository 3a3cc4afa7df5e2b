"""Items: the Helm chart renders its values, and refuses wrong ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

from aosp_plugin.config import keys, sources
from hack.release import chart as release_chart
from hack.release import source
from tests.e2e.deploy import parts
from tests.e2e.deploy.items_dra import require_claim
from tests.e2e.deploy.manifests import VALUES, accepted, charted, configurations, the
from tests.e2e.deploy.parts import CHART, DEPLOY, refuses, run


def lint() -> None:
    """`helm lint --strict` accepts the chart with all tested values."""
    for values in VALUES.values():
        run(parts.helm(), "lint", "--strict", str(CHART), *values)


def values_are_rendered() -> None:
    """Each value of the chart appears in the manifests, and common labels at each object."""
    rendered = charted(*VALUES["everything"])
    values = yaml.safe_load((CHART / "ci" / "everything-values.yaml").read_text())
    text = yaml.safe_dump_all(rendered, width=1000)
    missing = [value for value in _leaves(values) if value not in text]
    assert not missing, missing
    daemon_set, common = the("DaemonSet", rendered), values["commonLabels"].items()
    metadata = daemon_set["spec"]["template"]["metadata"]
    monitor = the("PodMonitor", rendered)
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [daemon_set["metadata"]["namespace"]]}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert values["podMonitor"]["endpoint"].items() <= endpoint.items()
    assert common <= metadata["labels"].items(), metadata
    unlabelled = [item["kind"] for item in rendered if not common <= item["metadata"].get("labels", {}).items()]
    assert not unlabelled, unlabelled
    assert not common <= daemon_set["spec"]["selector"]["matchLabels"].items(), "the selector cannot be changed"


def values_are_merged() -> None:
    """What is set in two places, or belongs to the chart, is there once; the more special one counts."""
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
    rendered = charted(*VALUES["provision"], *options)
    pod = the("DaemonSet", rendered)["spec"]["template"]["metadata"]
    assert annotations.items() <= pod["annotations"].items(), pod
    (dashboard,) = [item for item in rendered if item["metadata"]["name"].endswith("-dashboard")]
    for found in (the("PodMonitor", rendered), the("PrometheusRule", rendered), dashboard):
        assert (label | version | {"zone": "a"}).items() <= found["metadata"]["labels"].items(), found["metadata"]
    assert (label | {"zone": "a"}).items() <= pod["labels"].items(), pod
    (found,) = the("PodMonitor", rendered)["spec"]["podMetricsEndpoints"]
    targets = [each["targetLabel"] for each in found["relabelings"]]
    assert (found["port"], found["interval"], targets) == ("http", "5s", ["node", "a"]), found


def _leaves(values: Any) -> list[str]:
    """Return the texts and numbers in values, and the names in mappings of labels and the like."""
    if isinstance(values, dict):
        return [leaf for value in values.values() for leaf in _leaves(value)]
    if isinstance(values, list):
        return [leaf for value in values for leaf in _leaves(value)]
    return [] if isinstance(values, bool) or not values else [str(values).strip()]


def service_account_of_others() -> None:
    """An existing service account is used as it is: the chart creates none, and binds the driver's rights to it."""
    values = ("--set", "serviceAccount.create=false,serviceAccount.name=theirs")
    rendered = charted(*VALUES["dra"], *values)
    assert "ServiceAccount" not in {manifest["kind"] for manifest in rendered}
    assert the("DaemonSet", rendered)["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"
    assert the("ClusterRoleBinding", rendered)["subjects"][0]["name"] == "theirs"
    assert "system:serviceaccount:kube-system:theirs" in str(the("ValidatingAdmissionPolicy", rendered))
    pod = the("DaemonSet", charted("--set", "serviceAccount.create=false"))["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "default", pod


def image_is_required() -> None:
    """Without an image, `helm install` fails with the reason, and with what to do about it."""
    refuses(
        lambda: run(parts.helm(), "template", "phones", str(CHART)),
        *("image.repository is not set", "make image", "image.repository=localhost/aosp-device-plugin"),
    )


def files_are_rendered() -> None:
    """Helm renders alert rules, with links to the runbook, the dashboard, and the profiles for phones."""
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    plain = the("PrometheusRule", charted("--set", "prometheusRule.enabled=true"))
    assert plain["spec"] == rules, "without a runbook there are no links"
    linked = the("PrometheusRule", charted("--set", "prometheusRule.enabled=true,prometheusRule.runbook=https://x"))
    for rule in linked["spec"]["groups"][0]["rules"]:
        assert rule["annotations"]["runbook_url"] == f"https://x#{rule['alert'].lower()}", rule
    rendered = charted(*VALUES["everything"])
    (dashboard,) = [manifest["data"] for manifest in rendered if manifest["metadata"]["name"].endswith("-dashboard")]
    text = (CHART / "files" / "dashboard.json").read_text()
    assert dashboard["aosp-device-plugin.json"].strip() == text.strip()
    (profiles,) = [manifest["data"] for manifest in rendered if manifest["metadata"]["name"].endswith("-phone-profile")]
    for file in (DEPLOY / "apparmor" / "aosp-phone", DEPLOY / "seccomp" / "aosp-phone.json"):
        assert profiles[file.name].strip() == file.read_text().strip(), file


def alerts_are_tuned() -> None:
    """Values leave alerts out, and replace expressions, times, labels and annotations of others."""
    values = yaml.safe_load((CHART / "ci" / "everything-values.yaml").read_text())["prometheusRule"]
    (group,) = the("PrometheusRule", charted(*VALUES["everything"]))["spec"]["groups"]
    (unchanged,) = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    rules, own = ({rule["alert"]: rule for rule in each["rules"]} for each in (group, unchanged))
    assert own.keys() - rules.keys() == values["disabled"].keys()
    for name, rule in rules.items():
        custom = values["customRules"].get(name, {})
        for field in ("expr", "for"):
            assert rule.get(field) == custom.get(field, own[name].get(field)), rule
        labels = own[name]["labels"] | values["additionalRuleLabels"] | custom.get("labels", {})
        assert rule["labels"] == labels, rule
        link = {"runbook_url": f"{values['runbook']}#{name.lower()}"}
        assert rule["annotations"] == own[name]["annotations"] | link | custom.get("annotations", {}), rule


def selectors_select() -> None:
    """PodMonitor and NetworkPolicy select the plugin's pods. The policy can be left out."""
    rendered = charted(*VALUES["everything"])
    labels = the("DaemonSet", rendered)["spec"]["template"]["metadata"]["labels"]
    for kind, field in (("PodMonitor", "selector"), ("NetworkPolicy", "podSelector")):
        assert the(kind, rendered)["spec"][field]["matchLabels"].items() <= labels.items(), kind
    without = charted("--set", "networkPolicy.enabled=false")
    assert not [manifest for manifest in without if manifest["kind"] == "NetworkPolicy"]


def init_container_provisions() -> None:
    """With provision.mode=init-container, nothing is privileged after it; CDI and a token are as without it."""
    image = "image.repository=example.com/a,image.tag=v1,resources.limits.memory=1Gi,config.log_level=debug"
    values = ("--set", image, "--set", "provision.mode=init-container")
    pod = the("DaemonSet", charted(*VALUES["provision"], *values))["spec"]["template"]["spec"]
    (init,), (container,) = pod["initContainers"], pod["containers"]
    assert (init["image"], init["resources"]["limits"]["memory"]) == ("example.com/a:v1", "1Gi"), init
    assert (init["securityContext"]["privileged"], container["securityContext"]["privileged"]) == (True, False)
    assert "hostPID" not in pod
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["device-plugins"], writable
    assert {"name": "AOSP_PLUGIN_PROVISIONED_BY", "value": "command"} in container["env"], container["env"]


def plugin_takes_configuration() -> None:
    """The plugin accepts each rendered configuration, with unchanged numbers."""
    for values in VALUES.values():
        for text in configurations(charted(*values)):
            _loaded(text)
    large = "config.sets.size=3,config.sets.first=999999999"
    assert _loaded(configurations(charted("--set", large))[0]).resources[0].sets == keys.NumberedSets(
        size=3, first=999_999_999
    )


def _loaded(text: str) -> keys.Config:
    """Return the plugin's configuration in a file with this text."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "config.yaml")
        path.write_text(text)
        return sources.load({}, {}, str(path))[0]


def configuration_is_checked() -> None:
    """Before an upgrade, a pod without rights runs `aosp-plugin config` for each kind of nodes; a wrong one fails."""
    wrong = "nodes[1].config.container_paths[0]=/proc/binder"
    for name, number in (("everything", 1), ("kinds", 3)):
        rendered = accepted(charted(*VALUES[name]))
        job = the("Job", rendered)
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade", job
        assert job["spec"]["backoffLimit"] == 0, job
        assert len(_checked(rendered)) == number
        assert {code for code, _ in _checked(rendered)} == {0}, _checked(rendered)
        pod = job["spec"]["template"]["spec"]
        assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False)
        daemon_sets = [each for each in rendered if each["kind"] == "DaemonSet"]
        for daemon_set in daemon_sets:
            labels = job["spec"]["template"]["metadata"]["labels"].items()
            assert not daemon_set["spec"]["selector"]["matchLabels"].items() <= labels, labels
    long = the("Job", charted("--set", f"fullnameOverride={'n' * 63}"))["metadata"]["name"]
    assert len(long) <= 63, long  # the API server adds it as a label to the pod
    (_, _), (code, message), (_, _) = _checked(charted(*VALUES["kinds"], "--set", f"{NODES_OF_KINDS},{wrong}"))
    assert (code, "container_paths" in message) == (2, True), message


NODES_OF_KINDS = ",".join(f"nodes[{i}].name=k{i},nodes[{i}].nodeSelector.k=v{i}" for i in range(3))


def _checked(rendered: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return exit code and messages of each container that checks a configuration, as the chart runs it."""
    pod = the("Job", rendered)["spec"]["template"]["spec"]
    (name,) = [volume["configMap"]["name"] for volume in pod["volumes"]]
    (files,) = [each["data"] for each in rendered if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for file, text in files.items():
            Path(directory, file).write_text(text)
        for container in pod["containers"]:
            (mount,) = container["volumeMounts"]
            words = [word.replace(mount["mountPath"], directory) for word in container["args"]]
            result = subprocess.run(
                [sys.executable, "-m", "aosp_plugin", *words], capture_output=True, text=True, timeout=60, check=False
            )
            results.append((result.returncode, result.stderr))
    return results


def old_pod_stays() -> None:
    """By default a new pod is ready before the old one ends, except where two pods cannot be on a node."""
    without = {"maxSurge": 0, "maxUnavailable": "10%"}
    for values, expected in (
        (VALUES["provision"], {"maxSurge": "10%", "maxUnavailable": 0}),
        (VALUES["dra"], without),
        (("--set", "hostNetwork=true"), without),
        (("--set", "updateStrategy.rollingUpdate.maxUnavailable=3"), {"maxUnavailable": 3}),
    ):
        strategy = the("DaemonSet", charted(*values))["spec"]["updateStrategy"]
        assert strategy["rollingUpdate"] == expected, strategy


def privileges_follow_from_phones() -> None:
    """A count of phones adds the container that mounts them; without one, nothing is privileged."""
    for values, names in ((("--set", "config.phones.count=3"), ["aosp-device-plugin", "provisioner"]), ((), None)):
        pod = the("DaemonSet", charted(*values))["spec"]["template"]["spec"]
        assert [each["name"] for each in pod["containers"]] == (names or ["aosp-device-plugin"]), values
        privileged = [each["name"] for each in pod["containers"] if each["securityContext"]["privileged"]]
        assert privileged == (["provisioner"] if names else []), values


def changes_roll_out() -> None:
    """A changed configuration changes the pod template; a changed interval of the PodMonitor does not."""

    def template(*arguments: str) -> object:
        return the("DaemonSet", charted(*arguments))["spec"]["template"]

    assert template("--set", "config.log_level=debug") != template()
    assert template("--set", "podMonitor.endpoint.interval=7s") == template()


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
    "prometheusRule.runbook=docs/runbook.md": "at '/prometheusRule/runbook'",
    "prometheusRule.disabled.AospPluginX=true": "additional properties 'AospPluginX' not allowed",
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


def values_are_checked() -> None:
    """Helm refuses wrong values, and values that require privileges of the pod, with the reason."""
    for values, message in REFUSED.items():
        refuses(lambda values=values: charted("--set", values), message)  # type: ignore[misc]


def test_pods() -> None:
    """`helm test` runs an unprivileged pod for each resource where the plugin runs; the DaemonSet does not adopt it."""
    for values, resources in (
        ("default", ["aosp.io/binder"]),
        ("provision", ["aosp.io/phone"]),
        ("everything", ["aosp.io/phone", "aosp.io/sidecar"]),
        ("dra", ["aosp.io/phone"]),
        ("dra-found", ["aosp.io/phone", "example.com/tablet", "aosp.io/sidecar"]),
    ):
        drivers = {"dra": {"aosp.io/phone"}, "dra-found": {"aosp.io/phone", "example.com/tablet"}}.get(values, set())
        rendered = charted(*VALUES[values])
        daemon_set = the("DaemonSet", rendered)
        template = daemon_set["spec"]["template"]["spec"]
        pods = [manifest for manifest in accepted(rendered) if manifest["kind"] == "Pod"]
        assert len(pods) == len(resources), f"{values}: {len(pods)} pods"
        for pod, resource in zip(pods, resources, strict=True):
            spec, metadata = pod["spec"], pod["metadata"]
            (container,) = spec["containers"]
            assert metadata["annotations"]["helm.sh/hook"] == "test", metadata
            assert not daemon_set["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items(), metadata
            if resource in drivers:
                require_claim(rendered, pod)
            else:
                assert container["resources"]["limits"][resource] == "1", container
            assert f"--resource={resource}" in container["command"], container
            assert container["image"] == template["containers"][0]["image"], container
            for name in ("nodeSelector", "tolerations", "affinity", "imagePullSecrets"):
                assert spec.get(name) == template.get(name), f"{name}: {spec.get(name)}"
            assert container["securityContext"]["privileged"] is False, container
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, container
            assert [volume["configMap"]["name"] for volume in spec["volumes"]] == [daemon_set["metadata"]["name"]]


def released() -> None:
    """A release's chart has the files that Helm packs, no tests, and renders the release's image without any value."""
    digest = f"sha256:{'1' * 64}"
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "release")
        output.mkdir()
        run(parts.helm(), "package", str(CHART), "--destination", directory)
        (helms,) = Path(directory).glob("*.tgz")
        project = source.read(source.ROOT)
        ours = release_chart.pack(
            project, output, "registry.example.com/plugin", digest, "https://git.example.com/plugin"
        )
        with tarfile.open(helms) as first, tarfile.open(ours) as second:
            assert sorted(first.getnames()) == sorted(second.getnames())
            assert not [name for name in second.getnames() if re.search(r"/ci/|_test\.yaml$", name)]
        run(parts.helm(), "lint", "--strict", str(ours))
        rendered = run(parts.helm(), "template", "aosp-device-plugin", str(ours))
        shown = yaml.safe_load(run(parts.helm(), "show", "chart", str(ours)))
    images = set(re.findall(r"^ +image: (\S+)$", rendered, re.MULTILINE))
    assert images == {f"registry.example.com/plugin@{digest}"}, images
    assert shown["home"] == "https://git.example.com/plugin", shown


ITEMS = (
    lint,
    values_are_rendered,
    values_are_merged,
    files_are_rendered,
    alerts_are_tuned,
    service_account_of_others,
    image_is_required,
    selectors_select,
    init_container_provisions,
    plugin_takes_configuration,
    configuration_is_checked,
    old_pod_stays,
    privileges_follow_from_phones,
    changes_roll_out,
    values_are_checked,
    test_pods,
    released,
)
