"""Rules for deploy/dra and the examples of claims. ``make test-deploy`` renders, validates and compares them."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.backend.parameters import PARAMETER_KEYS
from aosp_plugin.config import sources
from aosp_plugin.framework.dra.driver_names import driver_name
from tests.api_contract.publishing import RIGHTS

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLES = sorted((DEPLOY / "examples" / "dra").glob("*.yaml"))


def documents(path: Path | str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")))


CONFIG, _ = sources.load({}, {}, str(DEPLOY / "dra/config.yaml"))
(RESOURCE,) = CONFIG.resources
DRIVER = driver_name(RESOURCE.resource_name)
INSTALLED = {(each["kind"], each["metadata"]["name"]): each for each in documents("dra/manifests.yaml")}
POD = INSTALLED["DaemonSet", "aosp-device-plugin"]["spec"]["template"]["spec"]


def test_the_directories_of_drivers_are_mounted_at_the_paths_of_the_host() -> None:
    (container,) = POD["containers"]
    hosts = {
        volume["name"]: volume["hostPath"]["path"] for volume in POD["volumes"] if volume["name"].startswith("plugins")
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in hosts}
    assert mounts == hosts
    assert set(mounts.values()) == {CONFIG.plugins_registry, posixpath.dirname(CONFIG.driver_directory(DRIVER))}


def test_the_driver_has_the_rights_with_which_its_publisher_is_tested() -> None:
    """And the claims."""
    role = INSTALLED["ClusterRole", "aosp-device-plugin"]
    rights = [(verb, name) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]]
    assert {*rights} == {*RIGHTS, ("get", "resourceclaims")}


def test_the_policy_for_claims_knows_the_keys_of_the_parameters() -> None:
    policy = INSTALLED["ValidatingAdmissionPolicy", "aosp-device-plugin-claims"]
    (keys,) = (item["expression"] for item in policy["spec"]["variables"] if item["name"] == "keys")
    assert {*json.loads(keys)} == {"apiVersion", "kind", *PARAMETER_KEYS} - {"allowedDevices"}


def requests(document: Any) -> list[Any]:
    """Return the requests of a ResourceClaim or ResourceClaimTemplate, with the alternatives of a request."""
    spec = document["spec"]
    found: list[Any] = []
    for request in spec.get("spec", spec)["devices"]["requests"]:
        found += [request["exactly"]] if "exactly" in request else request["firstAvailable"]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_claims_devices_of_a_class_of_this_driver(path: Path) -> None:
    kinds: dict[str, list[Any]] = {}
    for document in documents(path):
        kinds.setdefault(document["kind"], []).append(document)
    classes = {DRIVER, *(item["metadata"]["name"] for item in kinds.get("DeviceClass", []))}
    claims = [item for name in ("ResourceClaim", "ResourceClaimTemplate") for item in kinds.get(name, [])]
    assert {request["deviceClassName"] for claim in claims for request in requests(claim)} <= classes
    names = {claim["metadata"]["name"] for claim in claims}
    for pod in kinds["Pod"]:
        claimed = {
            claim["name"]: claim.get("resourceClaimName", claim.get("resourceClaimTemplateName"))
            for claim in pod["spec"].get("resourceClaims", [])
        }
        assert set(claimed.values()) <= names
        for container in pod["spec"]["containers"]:
            resources, security = container["resources"], container["securityContext"]
            used = {claim["name"] for claim in resources.get("claims", [])}
            assert used <= claimed.keys()
            assert used or resources["limits"]["aosp.io/phone"] == 1
            assert (security["privileged"], security["capabilities"]) == (False, {"drop": ["ALL"]})
