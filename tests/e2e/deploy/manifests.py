"""Manifests as data: what kustomize and Helm make, what the API server says of them, and when two are the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml
from jsonschema import Draft202012Validator

from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import CHART, DEPLOY, run

if TYPE_CHECKING:
    from collections.abc import Iterable

Manifest = dict[str, Any]

VALUES: Final = {
    "as it is": (),
    "provision": ("--values", str(CHART / "ci" / "provision-values.yaml")),
    "everything": ("--values", str(CHART / "ci" / "everything-values.yaml")),
}
"""The values under which the chart is tried."""

_OF_HELM: Final = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")
_BUILT_IN: Final = ("v1", "apps/v1", "networking.k8s.io/v1")


def kustomized(name: str) -> list[Manifest]:
    """Return what ``kubectl apply -k deploy/NAME`` would apply."""
    return list(yaml.safe_load_all(run(parts.kustomize(), "build", str(DEPLOY / name))))


def charted(*arguments: str) -> list[Manifest]:
    """Return what Helm would install."""
    text = run(parts.helm(), "template", "aosp-device-plugin", str(CHART), "--namespace", "kube-system", *arguments)
    return [one for one in yaml.safe_load_all(text) if one]


def the(kind: str, manifests: Iterable[Manifest]) -> Manifest:
    """Return the first of a kind."""
    return next(one for one in manifests if one["kind"] == kind)


def accepted(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return those of Kubernetes' own kinds with their defaults. AssertionError where the API server refuses one."""
    own = [one for one in manifests if one["apiVersion"] in _BUILT_IN]
    text = yaml.safe_dump_all(own)
    return [json.loads(line) for line in run(parts.validator(), text=text).splitlines()]


def require_schema(manifest: Manifest) -> None:
    """Hold an object of the Prometheus operator against its CRD. AssertionError where that refuses it."""
    plural = f"{manifest['kind'].lower()}s"
    text = (parts.operator_crds() / f"monitoring.coreos.com_{plural}.yaml").read_text()
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    assert manifest["apiVersion"] == f"monitoring.coreos.com/{version['name']}", manifest["apiVersion"]
    validator = Draft202012Validator(_closed(version["schema"]["openAPIV3Schema"]))
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
    assert not problems, "; ".join(problems)


def _closed(schema: Any) -> Any:
    """Have a CRD's schema refuse the fields that an API server drops without a word."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(one) for name, one in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def comparable(daemon_set: Manifest) -> Manifest:
    """Return what matters of a DaemonSet with its defaults: without what Helm adds, and lists in one order.

    The name of the ConfigMap is left out too, as kustomize has a hash in it.
    """
    spec: Manifest = json.loads(json.dumps(daemon_set["spec"]))
    template = spec["template"]
    template["metadata"].pop("annotations", None)
    for labels in (spec["selector"]["matchLabels"], template["metadata"]["labels"]):
        for name in _OF_HELM:
            labels.pop(name, None)
    pod = template["spec"]
    pod["volumes"].sort(key=lambda volume: str(volume["name"]))
    for volume in pod["volumes"]:
        volume.get("configMap", {}).pop("name", None)
    for container in pod["containers"]:
        container["volumeMounts"].sort(key=lambda mount: str(mount["mountPath"]))
    return {"name": daemon_set["metadata"]["name"], "namespace": daemon_set["metadata"]["namespace"], "spec": spec}


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [text for name in names for text in differences(one.get(name), other.get(name), f"{path}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [text for i, (left, right) in pairs for text in differences(left, right, f"{path}[{i}]")]
    return [] if one == other else [f"{path}: {one} and {other}"]


def configuration(manifests: Iterable[Manifest]) -> str:
    """Return the text of the plugin's configuration file."""
    found = [one["data"] for one in manifests if one["kind"] == "ConfigMap" and "config.yaml" in one["data"]]
    (data,) = found
    text: str = data["config.yaml"]
    return text
