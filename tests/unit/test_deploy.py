"""Rules for the manifests, the systemd unit and the image. ``make test-deploy`` renders and validates the manifests."""

from __future__ import annotations

import configparser
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.config import keys, sources, values
from aosp_plugin.config.sources import NODE_VARIABLE
from aosp_plugin.framework.timings import GRACE_PERIOD
from hack import phone_seccomp

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEMPLATES = DEPLOY / "chart" / "templates"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
HOST_NAMESPACES = {"hostNetwork", "hostPID", "hostIPC"}


def load(name: str) -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def installed(name: str, kind: str = "DaemonSet") -> dict[str, Any]:
    """Return the object of a kind in the manifests of a directory of deploy/."""
    documents = yaml.safe_load_all((DEPLOY / name / "manifests.yaml").read_text(encoding="utf-8"))
    (found,) = [document for document in documents if document["kind"] == kind]
    assert isinstance(found, dict)
    return found


POD = installed("base")["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
FLAGS = dict(argument.split("=", 1) for argument in CONTAINER["args"][1:])
VARIABLES = {variable["name"]: variable.get("value", "") for variable in CONTAINER["env"]}
LISTEN = sources.variable("listen")
PROVISION_POD = installed("provision")["spec"]["template"]["spec"]
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
    account = installed("base", "ServiceAccount")
    assert (POD["serviceAccountName"], account["automountServiceAccountToken"]) == (account["metadata"]["name"], False)
    assert POD["automountServiceAccountToken"] is False


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
        variables["AOSP_PLUGIN_PROVISIONED_BY"] = {each["name"]: each.get("value") for each in PROVISION_PLUGIN["env"]}[
            "AOSP_PLUGIN_PROVISIONED_BY"
        ]
    effective, _ = sources.load(flags, variables, str(DEPLOY / variant / "config.yaml"))
    (resource,) = effective.resources
    assert resource.resource_name == ("aosp.io/binder" if variant == "base" else "aosp.io/phone")
    assert (resource.phones is not None) == (variant != "base")
    assert (resource.provisioned_by is values.ProvisionedBy.PROVISIONER) == (variant == "provision")
    assert (resource.recreate is values.Recreate.ON_START) == (variant != "base")
    assert (effective.listen, keys.status_address(effective)) == ("10.0.0.1:9478", ("127.0.0.1", 9478))


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


def test_phones_are_removed_on_the_nodes_of_all_kinds_and_both_apis() -> None:
    """Their labels have the same name as the plugin's node selector, and other values."""
    (removal,) = [each for each in yaml.safe_load_all((DEPLOY / "remove.yaml").read_text()) if "spec" in each]
    pod = removal["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": key, "operator": "Exists"} for key in POD["nodeSelector"]]}
    assert "nodeSelector" not in pod


def test_phones_of_claims_stay_because_their_records_are_mounted() -> None:
    (removal,) = [each for each in yaml.safe_load_all((DEPLOY / "remove.yaml").read_text()) if "spec" in each]
    pod = removal["spec"]["template"]["spec"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: paths[mount["name"]] for mount in pod["initContainers"][0]["volumeMounts"]}
    records = keys.Config().driver_directory("").rstrip("/")
    assert mounted.get(records) == records


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
            elif document.get("kind") in {"StatefulSet", "Deployment"}:
                found[path.name] = document["spec"]["template"]["spec"]
    return found


EXAMPLE_PODS = example_pods()


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


def shipped_pods() -> dict[str, dict[str, Any]]:
    """Return each pod spec that deploy/, the chart's templates aside, and the documents have, by its place."""
    files = [path for path in DEPLOY.rglob("*.yaml") if TEMPLATES not in path.parents]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for number, block in enumerate(re.findall(r"(?s)```yaml\n(.*?)```", page.read_text(encoding="utf-8"))):
            texts[f"{page.name} {number}"] = block
    found = {}
    for place, text in texts.items():
        for number, document in enumerate(yaml.safe_load_all(text) if re.search("(?m)^kind: ", text) else ()):
            spec = (document or {}).get("spec") or {}
            is_patch = document and document["kind"] == "DaemonSet" and "selector" not in spec
            pod = spec.get("template", {}).get("spec", spec)
            if "containers" in pod and not is_patch:
                found[f"{place} {number}"] = pod
    return found


SHIPPED_PODS = shipped_pods()


def test_pods_are_found_in_manifests_and_documents() -> None:
    files = {place.partition(" ")[0] for place in SHIPPED_PODS}
    assert {"deploy/base/manifests.yaml", "deploy/remove.yaml", "deploy/examples/dra/shared.yaml"} < files
    assert "quickstart.md" in files


@pytest.mark.parametrize("pod", SHIPPED_PODS.values(), ids=SHIPPED_PODS)
def test_a_pod_has_no_variables_of_services(pod: dict[str, Any]) -> None:
    """A Service named aosp-plugin would add variables with the prefix of the configuration."""
    assert pod["enableServiceLinks"] is False


def unit(name: str) -> dict[str, str]:
    """Return the settings of the service in a unit file; of a repeated name, the last value."""
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names are case-sensitive
    parser.read_string((DEPLOY / "systemd" / name).read_text(encoding="utf-8"))
    return dict(parser["Service"])


def test_process_ends_by_itself_before_it_is_killed() -> None:
    """Its deadline follows from the time until SIGKILL, which is the same wherever the plugin runs."""
    chart = (DEPLOY / "chart/templates/daemonset.yaml").read_text(encoding="utf-8")
    (in_chart,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", chart)
    in_unit = unit("aosp-device-plugin.service")["TimeoutStopSec"]
    assert {POD["terminationGracePeriodSeconds"], int(in_chart), int(in_unit)} == {GRACE_PERIOD}


@pytest.mark.parametrize("file", ["requirements.txt", "deploy/build-requirements.txt"])
def test_requirements_have_exact_versions_and_hashes(file: str) -> None:
    packages = re.findall(r"^\w.*(?:\n    .*)*", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert packages
    assert all("==" in package and "--hash=sha256:" in package for package in packages)


def test_the_image_installs_only_wheels_with_hashes() -> None:
    script = (ROOT / "hack" / "image" / "root.sh").read_text(encoding="utf-8")
    steps = re.sub(r"\\\n\s*", "", DOCKERFILE + script)
    installs = re.findall(r"^.*(?:pip install|^install) .*--requirement.*$", steps, re.MULTILINE)
    assert len(installs) == 2
    assert all("--require-hashes --only-binary=:all:" in line for line in installs)


def test_the_base_of_the_image_is_pinned_by_digest() -> None:
    assert re.search(
        r"^ARG BASE=docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE
    )


def test_the_build_context_has_the_copied_files_only() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert "*" in ignore
    assert {line[1:] for line in ignore if line.startswith("!")} == set(" ".join(sources).split())


@pytest.mark.parametrize("example", ["redroid.yaml", "redroid-statefulset.yaml", "tenant.yaml"])
def test_phone_with_admin_has_the_seccomp_profile_for_phones(example: str) -> None:
    """The runtime's default would allow it to remove its device filter."""
    text = (DEPLOY / "examples" / example).read_text(encoding="utf-8")
    *_, workload = yaml.safe_load_all(text)
    pod = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    assert "SYS_ADMIN" in pod["containers"][0]["securityContext"]["capabilities"]["add"]
    profile = {"type": "Localhost", "localhostProfile": phone_seccomp.PROFILE.name}
    assert pod["securityContext"]["seccompProfile"] == profile
    filtered = json.loads(phone_seccomp.PROFILE.read_text(encoding="utf-8"))
    allowed = {name for rule in filtered["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert filtered["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"mount", "umount2", "unshare", "ptrace", "mknod"} <= allowed
    assert not {*phone_seccomp.REMOVED, "kexec_load", "init_module", "userfaultfd"} & allowed
