"""Rules for the manifests, the systemd unit and the image. ``make test-deploy`` renders and validates the manifests."""

from __future__ import annotations

import configparser
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.binder.provision import bulk, provisioner_socket
from aosp_plugin.config import keys, sources, values
from aosp_plugin.framework.service.address import listen_address
from aosp_plugin.framework.timings import GRACE_PERIOD
from aosp_plugin.report.node_reporter import NODE_VARIABLE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HOST_NAMESPACES = {"hostNetwork", "hostPID", "hostIPC"}


def load(name: str) -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


DAEMON_SET = load("base/daemonset.yaml")
POD = DAEMON_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
MOUNTS = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
FLAGS = dict(argument.split("=", 1) for argument in CONTAINER["args"][1:])
VARIABLES = {variable["name"]: variable.get("value", "") for variable in CONTAINER["env"]}
LISTEN = sources.variable("listen")
POLICY = load("base/networkpolicy.yaml")["spec"]

PATCH_POD = load("privileged/daemonset.yaml")["spec"]["template"]["spec"]
(PATCHED,) = PATCH_POD["containers"]
PROVISION_POD = load("provision/daemonset.yaml")["spec"]["template"]["spec"]
PROVISION_PLUGIN, PROVISIONER = PROVISION_POD["containers"]


def test_base_has_no_privilege() -> None:
    assert CONTAINER["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not (HOST_NAMESPACES | {"initContainers"}) & POD.keys()
    account = load("base/serviceaccount.yaml")
    assert (POD["serviceAccountName"], account["automountServiceAccountToken"]) == (account["metadata"]["name"], False)
    assert POD["automountServiceAccountToken"] is False
    assert POD["enableServiceLinks"] is False


def test_base_writes_to_the_kubelet_s_plugin_directory_only() -> None:
    assert [mount["mountPath"] for mount in MOUNTS.values() if not mount.get("readOnly")] == [
        keys.DEFAULTS["kubelet_dir"]
    ]


@pytest.mark.parametrize("name", ["dev", "binderfs"])
def test_host_directories_are_mounted_below_the_host_root_with_later_mounts(name: str) -> None:
    assert MOUNTS[name]["mountPath"] == FLAGS["--host-root"] + VOLUMES[name]["hostPath"]["path"]
    assert MOUNTS[name]["mountPropagation"] == "HostToContainer"


def test_kubelet_directories_are_mounted_at_the_configured_paths() -> None:
    paths = {name: MOUNTS[name]["mountPath"] for name in ("device-plugins", "pod-resources")}
    assert paths == {name: VOLUMES[name]["hostPath"]["path"] for name in paths}
    assert paths["device-plugins"] == keys.DEFAULTS["kubelet_dir"]
    assert paths["pod-resources"] == str(Path(keys.DEFAULTS["pod_resources_socket"]).parent)


def test_a_rollout_requires_no_resources_for_a_second_plugin() -> None:
    """Otherwise the scheduler might evict phones for it."""
    assert DAEMON_SET["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_the_plugin_survives_taints_and_starts_before_phones() -> None:
    effects = {toleration["effect"] for toleration in POD["tolerations"] if toleration["operator"] == "Exists"}
    assert effects == {"NoSchedule", "NoExecute"}
    assert POD["priorityClassName"] == "system-node-critical"


def test_probes_use_the_address_on_which_the_plugin_listens() -> None:
    """The command ``status`` has the same variables as ``serve``, and so the address of its status."""
    host, _, port = VARIABLES[LISTEN].rpartition(":")
    assert host == "$(POD_IP)"
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": int(port)}]
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "http"}
    assert list(VARIABLES) == ["POD_IP", "AOSP_PLUGIN_CONFIG", LISTEN, NODE_VARIABLE]
    assert FLAGS.keys() == {"--host-root"}


@pytest.mark.parametrize("variant", ["base", "provision", "privileged"])
def test_the_configuration_is_accepted_with_the_container_s_flags_and_variables(variant: str) -> None:
    assert CONTAINER["args"][0] == "serve"
    flags = {flag[2:].replace("-", "_"): value for flag, value in FLAGS.items()}
    variables = {LISTEN: VARIABLES[LISTEN].replace("$(POD_IP)", "10.0.0.1")}
    if variant == "provision":
        variables |= {variable["name"]: variable["value"] for variable in PROVISION_PLUGIN["env"]}
    effective, _ = sources.load(flags, variables, str(DEPLOY / variant / "config.yaml"))
    (resource,) = effective.resources
    assert resource.resource_name == ("aosp.io/binder" if variant == "base" else "aosp.io/phone")
    assert (resource.phones is not None) == (variant != "base")
    assert (resource.provisioned_by is values.ProvisionedBy.PROVISIONER) == (variant == "provision")
    assert (resource.recreate is values.Recreate.ON_START) == (variant != "base")
    assert (effective.listen, keys.status_address(effective)) == ("10.0.0.1:9478", ("127.0.0.1", 9478))


def test_the_network_policy_admits_the_namespace_of_prometheus_to_probes_and_metrics_only() -> None:
    """The kubelet's probes come from the node, which a policy does not restrict; the chart has the same policy."""
    assert POLICY["podSelector"]["matchLabels"].items() <= DAEMON_SET["spec"]["template"]["metadata"]["labels"].items()
    assert POLICY["policyTypes"] == ["Ingress", "Egress"]
    assert POLICY["egress"] == []
    (rule,) = POLICY["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": CONTAINER["ports"][0]["containerPort"]}]
    values = load("chart/values.yaml")["networkPolicy"]
    assert (values["enabled"], values["from"]) == (True, rule["from"])
    assert "networkpolicy.yaml" in load("base/kustomization.yaml")["resources"]


def configurations() -> dict[str, Any]:
    """Return each configuration of the plugin in deploy/ and in the documents, by its place."""
    found = {f"{name}/config.yaml": load(f"{name}/config.yaml") for name in ("base", "provision", "privileged")}
    found["dra/config.yaml"] = load("dra/config.yaml")
    found["examples/redroid-config.yaml"] = load("examples/redroid-config.yaml")
    parts = ("provision", "privileged", "dra", "dra-found")
    for name in ("values.yaml", *(f"ci/{part}-values.yaml" for part in parts)):
        found[f"chart/{name}"] = load(f"chart/{name}")["config"]
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```yaml\n(version: v1\n.*?)```", text, re.DOTALL)
        blocks += map(textwrap.dedent, re.findall(r"(?m)^    version: v1\n(?:    .*\n|\n)*", text))
        found |= {f"{path.name} {number}": yaml.safe_load(block) for number, block in enumerate(blocks)}
    return found


@pytest.mark.parametrize("place", configurations())
def test_configurations_accept_binder_devices_only(place: str) -> None:
    """A device of another driver, such as a copy of /dev/null, is never healthy with them."""
    document = configurations()[place]
    verified = [document | entry for entry in document.get("resources", [{}])]
    assert {entry.get("verify", "binder" if "phones" in entry else "char") for entry in verified} <= {"binder", "probe"}


def test_every_document_has_the_same_directory_of_provisioned_devices() -> None:
    """It is below the directory that the pod mounts, as docs/deploy.md requires; `nodes create` has one beside it."""
    directories = [keys.Provision(count=1).directory, keys.Phones(count=1).directory]
    (volume,) = (volume["hostPath"]["path"] for volume in POD["volumes"] if volume["name"] == "binderfs")
    names = (DEPLOY / "chart/templates/_names.tpl").read_text(encoding="utf-8")
    assert re.findall('"directory" "(.*?)"', names) == directories
    assert {Path(directory).parent for directory in (*directories, bulk.BINDERFS_DIR)} == {Path(volume)}
    assert len({*directories, bulk.BINDERFS_DIR}) == 3
    text = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    assert f"**Mount a binderfs below `{volume}`, not directly on it.**" in text
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(DEPLOY / "systemd").iterdir()):
        assert not re.search(rf"binderfs-dir {volume}(?![/\w-])|binder {volume} ", path.read_text(encoding="utf-8"))


def test_the_configuration_is_mounted_where_the_flag_expects_it() -> None:
    (generator,) = load("base/kustomization.yaml")["configMapGenerator"]
    assert VOLUMES["config"]["configMap"]["name"] == generator["name"]
    assert [VARIABLES["AOSP_PLUGIN_CONFIG"]] == [
        f"{MOUNTS['config']['mountPath']}/{file}" for file in generator["files"]
    ]


def test_commented_keys_show_their_defaults() -> None:
    text = (DEPLOY / "base/config.yaml").read_text(encoding="utf-8")
    commented = dict(re.findall(r"^# (\w+): (\S+)$", text, flags=re.MULTILINE))
    assert commented
    assert {name: yaml.safe_load(value) for name, value in commented.items()} == {
        name: [*default] if isinstance(default := keys.DEFAULTS[name], tuple) else default for name in commented
    }


def test_provision_gives_rights_to_the_provisioner_only() -> None:
    """It has the image and the configuration of the plugin, no port, and a socket that only this pod has."""
    assert PROVISION_POD.keys() == {"containers", "volumes"}
    socket_directory = {"name": "provisioner", "mountPath": str(Path(provisioner_socket.PROVISIONER_SOCKET).parent)}
    plugin = PROVISION_PLUGIN
    assert plugin == {
        "name": CONTAINER["name"],
        "env": [{"name": sources.variable("provisioned_by"), "value": "provisioner"}],
        "volumeMounts": [socket_directory | {"readOnly": True}],
    }
    assert PROVISIONER["args"] == ["provisioner", *CONTAINER["args"][1:]]
    for key in ("image", "imagePullPolicy"):
        assert PROVISIONER[key] == CONTAINER[key], key
    assert PROVISIONER["env"] == [each for each in CONTAINER["env"] if each["name"] == "AOSP_PLUGIN_CONFIG"]
    assert PROVISIONER["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert PROVISIONER.keys() & {"ports", "readinessProbe", "livenessProbe"} == set()
    assert [mount for mount in PROVISIONER["volumeMounts"] if not mount.get("readOnly")] == [
        {"name": "binderfs", "mountPath": MOUNTS["binderfs"]["mountPath"], "mountPropagation": "Bidirectional"},
        socket_directory,
    ]
    assert PROVISION_POD["volumes"] == [{"name": "provisioner", "emptyDir": {}}]


def test_privileged_adds_the_documented_rights_only() -> None:
    assert PATCH_POD["hostPID"] is True
    assert not (HOST_NAMESPACES - {"hostPID"}) & PATCH_POD.keys()
    assert PATCHED["securityContext"]["privileged"] is True
    writable = {mount["name"] for mount in PATCHED["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"binderfs", "cdi"}


def test_a_provisioned_binderfs_is_mounted_below_the_volume() -> None:
    """A pod that starts again would keep a binderfs that is mounted on the volume's own directory."""
    effective, _ = sources.load({}, {}, str(DEPLOY / "privileged/config.yaml"))
    assert effective.resources[0].scan_directory.startswith(VOLUMES["binderfs"]["hostPath"]["path"] + "/")
    assert {"name": "binderfs", "propagation": "Bidirectional"} in [
        {"name": mount["name"], "propagation": mount.get("mountPropagation")} for mount in PATCHED["volumeMounts"]
    ]


def test_the_nfd_rule_sets_the_label_that_the_daemon_set_selects() -> None:
    """No registry has the CRD of Node Feature Discovery, so this is the only check of the rule."""
    (rule,) = load("nfd/nodefeaturerule.yaml")["spec"]["rules"]
    assert rule["labels"] == POD["nodeSelector"]
    terms = [term for alternative in rule["matchAny"] for term in alternative["matchFeatures"]]
    assert {term["feature"] for term in terms} == {"kernel.config", "kernel.loadedmodule"}
    for expression in (expression for term in terms for expression in term["matchExpressions"].values()):
        assert expression in ({"op": "Exists"}, {"op": "In", "value": ["y"]})


def example_pods() -> dict[str, Any]:
    """Return the pod spec of each example, by its file."""
    found = {}
    for path in sorted((DEPLOY / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document.get("kind") == "Pod":
                found[path.name] = document["spec"]
            elif document.get("kind") == "StatefulSet":
                found[path.name] = document["spec"]["template"]["spec"]
    return found


EXAMPLE_PODS = example_pods()


def test_the_examples_are_found() -> None:
    assert EXAMPLE_PODS.keys() == {"pod.yaml", "redroid.yaml", "redroid-statefulset.yaml"}


@pytest.mark.parametrize("pod", EXAMPLE_PODS.values(), ids=EXAMPLE_PODS)
def test_an_example_pod_requests_a_phone_s_devices_without_privilege(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    limits = {name: count for name, count in container["resources"]["limits"].items() if "/" in name}
    assert limits in ({"aosp.io/binder": 3}, {"aosp.io/phone": 1})
    security = container["securityContext"]
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["capabilities"]["drop"] == ["ALL"]
    # The API server rejects the spelling CAP_SYS_ADMIN together with allowPrivilegeEscalation: false.
    assert not any(name.startswith("CAP_") for name in security["capabilities"].get("add", []))
    assert not (HOST_NAMESPACES | {"initContainers"}) & pod.keys()
    assert not any("hostPath" in volume for volume in pod.get("volumes", []))


def test_android_starts_without_a_script_and_in_the_same_container_in_both_examples() -> None:
    """Container paths of the plugin replace links that a script would make."""
    pod, stateful = (EXAMPLE_PODS[name] for name in ("redroid.yaml", "redroid-statefulset.yaml"))
    assert pod["containers"] == stateful["containers"]
    assert "command" not in pod["containers"][0]
    assert {name: part for name, part in pod.items() if name != "volumes"} == stateful


def test_the_android_examples_request_the_resource_of_their_configuration() -> None:
    effective, _ = sources.load({}, {}, str(DEPLOY / "examples/redroid-config.yaml"))
    (resource,) = effective.resources
    assert resource.phones is not None
    assert resource.container_paths == ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
    for name in ("redroid.yaml", "redroid-statefulset.yaml"):
        assert EXAMPLE_PODS[name]["containers"][0]["resources"]["limits"][resource.resource_name] == 1


def test_the_android_examples_are_confined_by_the_profile_for_phones() -> None:
    """Only these mounts are denied: Android's init requires others."""
    profile = (DEPLOY / "apparmor/aosp-phone").read_text(encoding="utf-8")
    for name in ("redroid.yaml", "redroid-statefulset.yaml"):
        confined = EXAMPLE_PODS[name]["containers"][0]["securityContext"]["appArmorProfile"]
        assert confined == {"type": "Localhost", "localhostProfile": "aosp-phone"}
    assert "\nprofile aosp-phone flags=" in profile
    denied = [line.strip() for line in profile.splitlines() if line.strip().startswith("deny mount")]
    assert denied == ["deny mount fstype=(binder, debugfs, tracefs),", "deny mount options=(move),"]


def test_adb_reaches_the_phones_that_the_service_selects() -> None:
    text = (DEPLOY / "examples/redroid-statefulset.yaml").read_text(encoding="utf-8")
    service, policy, stateful = yaml.safe_load_all(text)
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    (port,) = EXAMPLE_PODS["redroid-statefulset.yaml"]["containers"][0]["ports"]
    assert [port["containerPort"]] == [allowed["port"] for allowed in policy["spec"]["ingress"][0]["ports"]]
    assert service["spec"]["ports"] == [
        {"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}
    ]


def unit(name: str, section: str = "Service") -> dict[str, str]:
    """Return the settings in a section of a unit file; of a repeated name, the last value."""
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
    parser.read_string((DEPLOY / "systemd" / name).read_text(encoding="utf-8"))
    return dict(parser[section])


def test_process_ends_by_itself_before_it_is_killed() -> None:
    """Its deadline follows from the time until SIGKILL, which is the same wherever the plugin runs."""
    chart = (DEPLOY / "chart/templates/daemonset.yaml").read_text(encoding="utf-8")
    (in_chart,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", chart)
    in_unit = unit("aosp-device-plugin.service")["TimeoutStopSec"]
    assert {POD["terminationGracePeriodSeconds"], int(in_chart), int(in_unit)} == {GRACE_PERIOD}


def test_the_unit_has_the_rights_of_the_base() -> None:
    service = unit("aosp-device-plugin.service")
    assert (service["CapabilityBoundingSet"], service["AmbientCapabilities"]) == ("", "")
    assert (service["NoNewPrivileges"], service["DevicePolicy"], service["ProtectSystem"]) == (
        "yes",
        "closed",
        "strict",
    )
    assert service["ReadWritePaths"] == keys.DEFAULTS["kubelet_dir"]
    assert service["MemoryMax"] + "i" == CONTAINER["resources"]["limits"]["memory"]


def test_the_unit_allows_what_the_plugin_uses_by_default() -> None:
    service = unit("aosp-device-plugin.service")
    address = listen_address(keys.DEFAULTS["listen"])
    assert address is not None
    assert service["SocketBindAllow"] == f"tcp:{address[1]}"
    assert (service["PrivateDevices"], service["ProcSubset"]) == ("no", "all")
    assert (service["Type"], service["TimeoutStartSec"], service["Restart"]) == ("notify", "infinity", "always")


def test_the_drop_in_adds_the_documented_rights_only() -> None:
    service = unit("provision.conf")
    assert service["CapabilityBoundingSet"].split() == ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]
    assert service["DeviceAllow"] == "char-*binder* rw"
    text = (DEPLOY / "systemd/provision.conf").read_text(encoding="utf-8")
    directory = keys.Provision(count=1).directory
    assert re.findall(r"^ReadWritePaths=(.*)$", text, re.MULTILINE) == [directory, "-/run/cdi"]
    assert unit("provision.conf", "Unit")["RequiresMountsFor"] == directory


def test_the_kubelet_waits_for_the_plugin_to_answer_not_for_its_unit_to_be_active() -> None:
    """The unit is active only when the kubelet has the devices: with an order, neither would start."""
    assert unit("kubelet.conf", "Unit") == {"Wants": "aosp-device-plugin.service"}
    address = listen_address(keys.DEFAULTS["listen"])
    assert address is not None
    command = unit("kubelet.conf")["ExecStartPre"]
    assert command.startswith("-/usr/bin/timeout 60 ")
    assert f"http://127.0.0.1:{address[1]}/readyz" in command


@pytest.mark.parametrize("file", ["requirements.txt", "deploy/build-requirements.txt"])
def test_requirements_have_exact_versions_and_hashes(file: str) -> None:
    packages = re.findall(r"^\w.*(?:\n    .*)*", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert packages
    assert all("==" in package and "--hash=sha256:" in package for package in packages)


def test_the_image_installs_only_wheels_with_hashes() -> None:
    steps = DOCKERFILE.replace("\\\n", " ")
    installs = [part for line in re.findall(r"^RUN (.*)$", steps, re.MULTILINE) for part in line.split("&&")]
    (tools,) = [part for part in installs if " install " in part]
    assert "--require-hashes --only-binary=:all:" in " ".join(tools.split())
    assert not re.search(r"\b(apt|apt-get|dpkg|apk)\b", steps)


def test_the_base_of_the_image_is_pinned_by_digest() -> None:
    assert re.search(
        r"^ARG BASE=docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE
    )


def test_nothing_of_the_base_image_is_run_in_the_final_image() -> None:
    """Otherwise an image for another machine would require its emulation."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert [stage.split("\n")[0] for stage in stages] == [
        "${BASE} AS target",
        "--platform=${BUILDPLATFORM} ${BUILD_BASE} AS build",
        "scratch",
    ]
    assert ["RUN " in stage for stage in stages] == [False, True, False]


def test_the_build_context_has_the_copied_files_only() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == set(" ".join(sources).split())
