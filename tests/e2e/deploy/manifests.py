"""Manifests as data: rendered by kustomize and Helm, validated by the API server's code, and compared."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import yaml

from tests.e2e.deploy.parts import CHART, DEPLOY, run

Manifest = dict[str, Any]

VALUES: Final = ("default", "provision", "privileged", "everything", "dra", "node", "dra-found", "kinds")
"""The values with which the chart is tested: files in its directory ``ci``."""

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


def kustomized(kustomize: str, name: str) -> list[Manifest]:
    """Return the manifests of ``kubectl apply -k deploy/NAME``."""
    return list(yaml.safe_load_all(run(kustomize, "build", str(DEPLOY / name))))


def values_file(name: str) -> tuple[str, str]:
    """Return Helm's options for tested values."""
    return "--values", str(CHART / "ci" / f"{name}-values.yaml")


def charted(helm: Callable[..., str], name: str = "default", changes: str = "", *options: str) -> list[Manifest]:
    """Return the manifests of ``helm install`` with the default image, tested values, and changes as for ``--set``."""
    command = ("template", "aosp-device-plugin", str(CHART), "--namespace", "kube-system", *values_file("default"))
    text = helm(*command, *values_file(name), "--set", changes, *options)
    return [manifest for manifest in yaml.load_all(text, _Loader) if manifest]


def the(kind: str, manifests: Iterable[Manifest]) -> Manifest:
    """Return the first manifest of a kind."""
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def every(kind: str, manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests of a kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod_of(manifest: Manifest) -> Manifest:
    """Return the spec of the pods that a manifest creates."""
    spec: Manifest = manifest["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def plugin_pod(manifests: Iterable[Manifest]) -> Manifest:
    """Return the spec of the plugin's pods."""
    return pod_of(the("DaemonSet", manifests))


def accepted(validator: str, manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests of built-in kinds with their defaults. Raises AssertionError if one is invalid."""
    text = yaml.safe_dump_all(manifest for manifest in manifests if manifest["apiVersion"] in _BUILT_IN)
    return [json.loads(line) for line in run(validator, text=text).splitlines()]


def configurations(manifests: Iterable[Manifest]) -> list[str]:
    """Return the text of the configuration file of each kind of nodes."""
    maps = [each for each in manifests if each["kind"] == "ConfigMap" and "annotations" not in each["metadata"]]
    return [each["data"]["config.yaml"] for each in maps if "config.yaml" in each["data"]]
