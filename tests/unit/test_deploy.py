"""What deploy/ and the documents have to agree on. ``make test-deploy`` and ``make test-cluster`` try what they say."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.backend.parameters import PARAMETER_KEYS
from aosp_plugin.framework.timing import GRACE_PERIOD
from hack import phone_seccomp
from tests.api_contract.common import RIGHTS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEMPLATES = DEPLOY / "chart" / "templates"


def blocks() -> dict[str, str]:
    """Return each YAML file of deploy/, the chart's templates aside, and each block of YAML in the documents."""
    files = [path for path in DEPLOY.rglob("*.yaml") if TEMPLATES not in path.parents]
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        indented = map(textwrap.dedent, re.findall(r"(?m)^    version: v1\n(?:    .*\n|\n)*", text))
        for number, block in enumerate((*re.findall(r"(?s)```yaml\n(.*?)```", text), *indented)):
            found[f"{page.name} {number}"] = block
    return found


BLOCKS = blocks()
INSTALLED = {
    (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(BLOCKS["deploy/dra/manifests.yaml"])
}


def pods() -> dict[str, dict[str, Any]]:
    """Return each pod spec by its place."""
    found = {}
    for place, text in BLOCKS.items():
        for number, document in enumerate(yaml.safe_load_all(text) if re.search("(?m)^kind: ", text) else ()):
            spec = (document or {}).get("spec") or {}
            is_patch = document and document["kind"] == "DaemonSet" and "selector" not in spec
            pod = spec.get("template", {}).get("spec", spec)
            if "containers" in pod and not is_patch:
                found[f"{place} {number}"] = pod
    return found


PODS = pods()


def test_every_pod_disables_service_links_and_every_example_is_unprivileged() -> None:
    """A Service named aosp-plugin would add variables with the prefix of the configuration.

    An example that adds SYS_ADMIN has the filter for phones, because the runtime's would let it remove its device
    filter. The API server rejects the spelling CAP_SYS_ADMIN together with allowPrivilegeEscalation: false.
    """
    assert len(PODS) > 15
    assert [place for place, pod in PODS.items() if pod["enableServiceLinks"] is not False] == []
    examples = {
        place: pod for place, pod in PODS.items() if place.startswith("deploy/examples/") and "node/" not in place
    }
    assert len(examples) > 8
    for pod in examples.values():
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        for container in pod["containers"]:
            security = container["securityContext"]
            assert (security["privileged"], security["capabilities"]["drop"]) == (False, ["ALL"])
            added = security["capabilities"].get("add", [])
            assert not any(name.startswith("CAP_") for name in added)
            if "SYS_ADMIN" in added:
                profile = {"type": "Localhost", "localhostProfile": phone_seccomp.PROFILE.name}
                assert pod["securityContext"]["seccompProfile"] == profile


def configurations() -> dict[str, Any]:
    """Return each configuration of the plugin, of the chart's values too, by its place."""
    texts = {place: text for place, text in BLOCKS.items() if "version: v1\n" in text and "kind: " not in text}
    documents = {place: yaml.safe_load(text) for place, text in texts.items()}
    return {place: each.get("config", each) for place, each in documents.items()}


def test_configurations_accept_binder_devices_only() -> None:
    """A device of another driver, such as a copy of /dev/null, is never healthy with them."""
    assert len(configurations()) > 15
    for place, document in configurations().items():
        for entry in (document | entry for entry in document.get("resources", [{}])):
            verified = entry.get("verify", "binder" if "phones" in entry else "char")
            assert verified in {"binder", "probe"}, place


def test_the_nfd_rule_sets_the_label_that_the_daemon_set_selects() -> None:
    """No registry has the CRD of Node Feature Discovery, so this is the only check of the rule."""
    (rule,) = yaml.safe_load(BLOCKS["deploy/nfd/nodefeaturerule.yaml"])["spec"]["rules"]
    assert rule["labels"] == PODS["deploy/base/manifests.yaml 2"]["nodeSelector"]
    terms = [term for alternative in rule["matchAny"] for term in alternative["matchFeatures"]]
    assert {term["feature"] for term in terms} == {"kernel.config", "kernel.loadedmodule"}
    for expression in (expression for term in terms for expression in term["matchExpressions"].values()):
        assert expression in ({"op": "Exists"}, {"op": "In", "value": ["y"]})


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("base/manifests.yaml", "terminationGracePeriodSeconds: "),
        ("chart/templates/daemonset.yaml", "terminationGracePeriodSeconds: "),
        ("systemd/aosp-device-plugin.service", "TimeoutStopSec="),
    ],
)
def test_process_ends_by_itself_before_it_is_killed(file: str, setting: str) -> None:
    """Its deadline follows from the time until SIGKILL, which is the same wherever the plugin runs."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    assert re.findall(rf"{setting}(\d+)", text) == [f"{GRACE_PERIOD:.0f}"]


def test_the_driver_has_the_rights_with_which_its_publisher_is_tested() -> None:
    """And the claims."""
    role = INSTALLED["ClusterRole", "aosp-device-plugin"]
    rights = [(verb, name) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]]
    assert {*rights} == {*RIGHTS, ("get", "resourceclaims")}


def test_the_policy_for_claims_knows_the_keys_of_the_parameters() -> None:
    policy = INSTALLED["ValidatingAdmissionPolicy", "aosp-device-plugin-claims"]
    (keys,) = (item["expression"] for item in policy["spec"]["variables"] if item["name"] == "keys")
    assert {*json.loads(keys)} == {"apiVersion", "kind", *PARAMETER_KEYS} - {"allowedDevices"}


def test_the_image_installs_only_wheels_with_hashes() -> None:
    script = (ROOT / "hack" / "image" / "root.sh").read_text(encoding="utf-8")
    steps = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8") + script)
    installs = re.findall(r"^.*(?:pip install|^install) .*--requirement.*$", steps, re.MULTILINE)
    assert len(installs) == 2
    assert all("--require-hashes --only-binary=:all:" in line for line in installs)
