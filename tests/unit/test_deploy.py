"""What `kubectl apply` and the image build take: the promises that their comments make."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aosp_plugin import config
from aosp_plugin.daemon.endpoints import NODE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy" / "base"
EXAMPLES = ROOT / "deploy" / "examples"
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"

FLAGS = {config.flag(name) for name, key in config.KEYS.items() if key.flag} | {"--config"}
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def instructions() -> list[tuple[str, str]]:
    """Split the Dockerfile into (instruction, arguments), comments gone and continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, rest in lines]


def final_stage() -> list[tuple[str, str]]:
    steps = instructions()
    last = max(number for number, (word, _) in enumerate(steps) if word == "FROM")
    return steps[last:]


DAEMON_SET = load(BASE / "daemonset.yaml")
POD = DAEMON_SET["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
SECURITY = CONTAINER["securityContext"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
MOUNTS = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
GIVEN_FLAGS = dict(argument.split("=", 1) for argument in CONTAINER["args"][1:])

PODS = [pytest.param(load(path)["spec"], id=path.name) for path in sorted(EXAMPLES.glob("*.yaml"))]


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return itertools.chain(pod["containers"], pod.get("initContainers", []))


def test_one_container() -> None:
    """The DaemonSet runs one container, the one that the other tests look at."""
    assert list(containers(POD)) == [CONTAINER]


def test_not_privileged() -> None:
    """The plugin is not privileged."""
    assert SECURITY["privileged"] is False


def test_no_capability() -> None:
    """The plugin has every capability dropped, and none added."""
    assert SECURITY["capabilities"] == {"drop": ["ALL"]}


def test_no_escalation() -> None:
    """The plugin cannot gain rights that it did not start with."""
    assert SECURITY["allowPrivilegeEscalation"] is False


def test_root_file_system_is_read_only() -> None:
    """The plugin's root file system is read-only."""
    assert SECURITY["readOnlyRootFilesystem"] is True


def test_seccomp() -> None:
    """The runtime's seccomp filter is on, and no container turns it off."""
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "seccompProfile" not in SECURITY


def test_root_uid() -> None:
    """The plugin is uid 0, which owns the kubelet's directory: without a capability no other uid gets in."""
    assert POD["securityContext"]["runAsUser"] == 0
    assert "runAsUser" not in SECURITY


def test_no_token() -> None:
    """The plugin gets no service account token."""
    assert POD["automountServiceAccountToken"] is False
    assert not {"serviceAccountName", "serviceAccount"} & POD.keys()


@pytest.mark.parametrize("key", ["hostNetwork", "hostPID", "hostIPC"])
def test_no_host_namespace(key: str) -> None:
    """The plugin shares no namespace with the host."""
    assert not POD.get(key)


def test_no_service_links() -> None:
    """No Service can put an AOSP_PLUGIN_* variable into the pod, which the plugin would refuse."""
    assert POD["enableServiceLinks"] is False


def test_priority() -> None:
    """The plugin comes before the pods that need it."""
    assert POD["priorityClassName"] == "system-node-critical"


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_tolerates_every_taint(effect: str) -> None:
    """A toleration without a key tolerates every taint of its effect, for ever."""
    assert {"operator": "Exists", "effect": effect} in POD["tolerations"]


def test_node_selector() -> None:
    """Only nodes that somebody has labelled get the plugin."""
    assert POD["nodeSelector"] == {"aosp.io/binder": "true"}


def test_rolling_update() -> None:
    """An update replaces the plugin node by node, and never has two on one node."""
    strategy = DAEMON_SET["spec"]["updateStrategy"]
    assert strategy["type"] == "RollingUpdate"
    assert strategy["rollingUpdate"]["maxSurge"] == 0
    assert strategy["rollingUpdate"]["maxUnavailable"]


@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_resources(kind: str) -> None:
    """The plugin asks for CPU and memory, and is limited in both."""
    assert CONTAINER["resources"][kind].keys() == {"cpu", "memory"}


@pytest.mark.parametrize(("probe", "path"), [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")])
def test_probes(probe: str, path: str) -> None:
    """Each probe asks its path at the port where the plugin listens."""
    (port,) = CONTAINER["ports"]
    assert CONTAINER[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert GIVEN_FLAGS["--listen"].rpartition(":")[2] == str(port["containerPort"])


def test_listens_on_the_pods_address_only() -> None:
    """The address is the pod's own, by the downward API: the kubelet reaches it, and it is not the node's."""
    assert GIVEN_FLAGS["--listen"].startswith("$(POD_IP):")
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in CONTAINER["env"]


def test_status_asks_where_the_plugin_listens() -> None:
    """`aosp-plugin status` in the pod needs no flag: a variable has the address of serve's flag."""
    assert {"name": config.variable("listen"), "value": GIVEN_FLAGS["--listen"]} in CONTAINER["env"]
    names = [variable["name"] for variable in CONTAINER["env"]]
    assert names.index("POD_IP") < names.index(config.variable("listen"))


def test_node_name() -> None:
    """The plugin is told the node's name, by the variable that it reads."""
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert {"name": NODE_VARIABLE, "valueFrom": field} in CONTAINER["env"]


def test_pod_resources_socket_is_mounted() -> None:
    """The directory of the kubelet's podresources socket is mounted where the plugin looks for it."""
    directory = config.Config().pod_resources_socket.rpartition("/")[0]
    assert MOUNTS["pod-resources"]["mountPath"] == VOLUMES["pod-resources"]["hostPath"]["path"] == directory


def test_host_paths() -> None:
    """The host paths are these, and one that need not be there is made rather than waited for."""
    found = {
        volume["hostPath"]["path"]: volume["hostPath"]["type"] for volume in POD["volumes"] if "hostPath" in volume
    }
    assert found == {
        DEVICE_PLUGINS: "Directory",
        "/dev": "Directory",
        "/run/aosp-binderfs": "DirectoryOrCreate",
        "/var/lib/kubelet/pod-resources": "DirectoryOrCreate",
    }


def test_only_the_kubelets_directory_is_writable() -> None:
    """Every mount is read-only but that of the kubelet's plugin directory."""
    assert [mount["mountPath"] for mount in MOUNTS.values() if not mount.get("readOnly")] == [DEVICE_PLUGINS]


def test_every_volume_is_mounted() -> None:
    """Volumes and mounts belong together."""
    assert VOLUMES.keys() == MOUNTS.keys()


@pytest.mark.parametrize("name", ["dev", "binderfs"])
def test_host_paths_under_the_host_root(name: str) -> None:
    """What the plugin looks at is mounted at its own path under --host-root, later mounts included."""
    mount = MOUNTS[name]
    assert mount["mountPath"] == GIVEN_FLAGS["--host-root"] + VOLUMES[name]["hostPath"]["path"]
    assert mount["mountPropagation"] == "HostToContainer"


def test_kubelet_directory_is_where_the_plugin_expects_it() -> None:
    """The kubelet's directory is mounted at the plugin's default, at the same path as on the host."""
    assert MOUNTS["device-plugins"]["mountPath"] == VOLUMES["device-plugins"]["hostPath"]["path"]
    assert config.Config().kubelet_dir.rstrip("/") == MOUNTS["device-plugins"]["mountPath"]


def test_flags_exist() -> None:
    """The container runs `serve`, with flags that it has."""
    assert CONTAINER["args"][0] == "serve"
    assert GIVEN_FLAGS.keys() <= FLAGS


def test_configuration_is_accepted() -> None:
    """The plugin accepts config.yaml, with the container's flags on top."""
    flags = {flag[2:].replace("-", "_"): value for flag, value in GIVEN_FLAGS.items() if flag != "--config"}
    flags["listen"] = flags["listen"].replace("$(POD_IP)", "10.0.0.1")
    effective, settings = config.load(flags, {}, str(BASE / "config.yaml"))
    assert effective.resources[0].resource_name == "aosp.io/binder"
    assert settings["log_format"].source.startswith("file ")


def test_commented_keys_exist() -> None:
    """The keys that config.yaml shows in comments exist, and are shown with their defaults."""
    text = (BASE / "config.yaml").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^# (\w+): (\S+)$", text, flags=re.MULTILINE))
    assert shown
    assert shown == {name: str(config.DEFAULTS[name]) for name in shown}


def test_configuration_is_mounted() -> None:
    """The generated ConfigMap is the one that the pod mounts, at the path that --config names."""
    (generated,) = load(BASE / "kustomization.yaml")["configMapGenerator"]
    assert VOLUMES["config"]["configMap"]["name"] == generated["name"]
    (file,) = generated["files"]
    assert GIVEN_FLAGS["--config"] == f"{MOUNTS['config']['mountPath']}/{file}"
    assert (BASE / file).is_file()


def test_kustomization() -> None:
    """The base is for kube-system, and every file that it names is there."""
    kustomization = load(BASE / "kustomization.yaml")
    assert kustomization["namespace"] == "kube-system"
    assert all((BASE / name).is_file() for name in kustomization["resources"])


def test_selector_matches_the_pods() -> None:
    """The DaemonSet selects its own pods by a label that an update does not change."""
    labels = DAEMON_SET["spec"]["template"]["metadata"]["labels"]
    assert DAEMON_SET["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_versions_agree() -> None:
    """The DaemonSet's image and the image's label have the project's version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert CONTAINER["image"] == f"aosp-device-plugin:{version}"
    assert ("ARG", f"VERSION={version}") in instructions()


@pytest.mark.parametrize("pod", PODS)
def test_examples_ask_for_a_phones_nodes(pod: dict[str, Any]) -> None:
    """Each example asks for three nodes, in limits, in exactly one container."""
    asked = [container["resources"].get("limits", {}).get("aosp.io/binder") for container in containers(pod)]
    assert [count for count in asked if count is not None] == [3]


@pytest.mark.parametrize("pod", PODS)
def test_examples_are_not_privileged(pod: dict[str, Any]) -> None:
    """No container of an example is privileged; each drops all capabilities and cannot escalate."""
    for container in containers(pod):
        security = container["securityContext"]
        assert security["privileged"] is False
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("pod", PODS)
def test_examples_reach_nothing_of_the_host(pod: dict[str, Any]) -> None:
    """An example has no host path, no host namespace, no token and the runtime's seccomp filter."""
    assert not any("hostPath" in volume for volume in pod.get("volumes", []))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_redroid_capabilities_are_spelled_as_the_api_takes_them() -> None:
    """The API server refuses CAP_SYS_ADMIN beside allowPrivilegeEscalation: false, but not SYS_ADMIN."""
    (redroid,) = load(EXAMPLES / "redroid.yaml")["spec"]["containers"]
    added = redroid["securityContext"]["capabilities"]["add"]
    assert "SYS_ADMIN" in added
    assert not any(name.startswith("CAP_") for name in added)


def test_base_image_is_pinned() -> None:
    """Both stages stand on one base, whose tag names an exact Python."""
    assert [step for step in instructions() if step[0] == "FROM"] == [
        ("FROM", "${BASE} AS build"),
        ("FROM", "${BASE}"),
    ]
    (base,) = (rest for word, rest in instructions() if word == "ARG" and rest.startswith("BASE="))
    assert re.fullmatch(r"BASE=docker\.io/library/python:\d+\.\d+\.\d+-slim-[a-z]+", base)


def test_packages_are_pinned() -> None:
    """What pip installs has a hash, or is the wheel that was just built; nothing is compiled."""
    installs = [
        part for word, rest in instructions() if word == "RUN" for part in rest.split(" && ") if " install " in part
    ]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes --only-binary=:all:" in command or "--no-deps --no-index /tmp/wheel/" in command


@pytest.mark.parametrize("file", ["requirements.txt", "deploy/build-requirements.txt"])
def test_requirements_are_pinned(file: str) -> None:
    """Every package of the image and of its build has an exact version and a hash."""
    text = (ROOT / file).read_text(encoding="utf-8")
    packages = re.findall(r"^\w.*(?:\n    .*)*", text, flags=re.MULTILINE)
    assert packages
    assert all("==" in package and "--hash=sha256:" in package for package in packages)


def test_no_compiler() -> None:
    """Neither stage installs a system package, so no compiler gets in."""
    assert not re.search(r"\b(apt|apt-get|dpkg|apk)\b", " ".join(rest for _, rest in instructions()))


def test_final_stage_takes_the_environment_only() -> None:
    """The final image is the base and /opt/venv, and runs one command to remove pip."""
    steps = final_stage()
    assert [rest for word, rest in steps if word in {"COPY", "ADD"}] == ["--from=build /opt/venv /opt/venv"]
    (run,) = (rest for word, rest in steps if word == "RUN")
    assert run.startswith("rm -rf /usr/local/bin/pip")


def test_entry_point() -> None:
    """The image runs `aosp-plugin serve` as uid 0 and writes no byte code."""
    steps = final_stage()
    assert {("ENTRYPOINT", '["aosp-plugin"]'), ("CMD", '["serve"]'), ("USER", "0")} <= set(steps)
    assert any(word == "ENV" and "PYTHONDONTWRITEBYTECODE=1" in rest for word, rest in steps)


def test_build_context() -> None:
    """The build sees what it copies and nothing else."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        name
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert "*" in lines
    assert allowed == copied
    assert all((ROOT / name).exists() for name in allowed)
