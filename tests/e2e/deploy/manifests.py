"""Manifests as data: rendered by kustomize and Helm, validated by the API server's code, and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import CHART, DEPLOY, run

if TYPE_CHECKING:
    from collections.abc import Iterable

Manifest = dict[str, Any]

VALUES: Final = {
    "default": ("--values", str(CHART / "ci" / "default-values.yaml")),
    "provision": ("--values", str(CHART / "ci" / "provision-values.yaml")),
    "privileged": ("--values", str(CHART / "ci" / "privileged-values.yaml")),
    "everything": ("--values", str(CHART / "ci" / "everything-values.yaml")),
    "dra": ("--values", str(CHART / "ci" / "dra-values.yaml")),
    "node": ("--values", str(CHART / "ci" / "node-values.yaml")),
    "dra-found": ("--values", str(CHART / "ci" / "dra-found-values.yaml")),
    "kinds": ("--values", str(CHART / "ci" / "kinds-values.yaml")),
}
"""The values with which the chart is tested."""

_BUILT_IN: Final = (
    "v1",
    "apps/v1",
    "batch/v1",
    "admissionregistration.k8s.io/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "resource.k8s.io/v1",
)


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, as kustomize and Flux do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        names = [key.value for key, _ in node.value]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"{node.start_mark}: {', '.join(twice)} is there twice"
        return super().construct_mapping(node, deep=deep)


def kustomized(name: str) -> list[Manifest]:
    """Return the manifests of ``kubectl apply -k deploy/NAME``."""
    return list(yaml.safe_load_all(run(parts.kustomize(), "build", str(DEPLOY / name))))


def charted(*arguments: str) -> list[Manifest]:
    """Return the manifests of ``helm install``, with an image unless the arguments have one."""
    words = ("template", "aosp-device-plugin", str(CHART), "--namespace", "kube-system", *VALUES["default"])
    text = run(parts.helm(), *words, *arguments)
    return [manifest for manifest in yaml.load_all(text, _Loader) if manifest]


def the(kind: str, manifests: Iterable[Manifest]) -> Manifest:
    """Return the first manifest of a kind."""
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def has_token(pod: Manifest) -> bool:
    """Return whether the container of the plugin has a token, and require that no other one has it."""
    assert pod["automountServiceAccountToken"] is False
    others = (*pod.get("initContainers", ()), *pod["containers"][1:])
    assert not any(mount["name"] == "token" for container in others for mount in container["volumeMounts"])
    volumes = [volume for volume in pod["volumes"] if volume["name"] == "token"]
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "token"]
    assert len(volumes) == len(mounts)
    return bool(mounts)


def accepted(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests of built-in kinds with their defaults. Raises AssertionError if one is invalid."""
    text = yaml.safe_dump_all(manifest for manifest in manifests if manifest["apiVersion"] in _BUILT_IN)
    return [json.loads(line) for line in run(parts.validator(), text=text).splitlines()]


def require_schema(manifest: Manifest) -> None:
    """Validate an object of the Prometheus operator with its CRD. Raises AssertionError if it is invalid."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - guests have only the plugin's own dependencies

    plural = f"{manifest['kind'].lower()}s"
    text = (parts.operator_crds() / f"monitoring.coreos.com_{plural}.yaml").read_text()
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    assert manifest["apiVersion"] == f"monitoring.coreos.com/{version['name']}", manifest["apiVersion"]
    validator = Draft202012Validator(_closed(version["schema"]["openAPIV3Schema"]))
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
    assert not problems, "; ".join(problems)


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


def configurations(manifests: Iterable[Manifest]) -> list[str]:
    """Return the text of the configuration file of each kind of nodes."""
    maps = [each for each in manifests if each["kind"] == "ConfigMap" and "annotations" not in each["metadata"]]
    return [each["data"]["config.yaml"] for each in maps if "config.yaml" in each["data"]]
