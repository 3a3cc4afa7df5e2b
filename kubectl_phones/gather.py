"""Reads a cluster: each list by a process of kubectl, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kubectl_phones import objects
from kubectl_phones.kubectl import Kubectl, KubectlError
from kubectl_phones.objects import Claim, Node, Object, Pod

NAME: Final = "aosp-device-plugin"
"""The name in the label of the plugin's DaemonSet and pods, and the source of its Events."""

_DRA: Final = "/apis/resource.k8s.io/v1"


class Selection(NamedTuple):
    """The selection by the options."""

    resources: Sequence[str] = ()
    nodes: Sequence[str] = ()
    namespace: str = ""
    unhealthy: bool = False

    @property
    def subset(self) -> bool:
        """Whether only some pods are read."""
        return bool(self.namespace)


@dataclass(frozen=True)
class Cluster:
    """Everything that was read. None means that it could not be read."""

    time: float
    nodes: tuple[Node, ...] | None
    pods: tuple[Pod, ...] | None
    plugin_pods: tuple[Pod, ...] | None
    daemon_sets: tuple[Object, ...] | None = ()
    """The DaemonSets of the plugin."""
    slices: tuple[Object, ...] | None = ()
    claims: tuple[Claim, ...] | None = ()
    classes: tuple[Object, ...] | None = ()
    """DeviceClasses."""
    events: tuple[Object, ...] | None = ()
    """The Events that plugins have written about their Nodes."""
    missing: tuple[str, ...] = ()
    """Lines that say what could not be read, and why."""


class _Wanted(NamedTuple):
    """A list to read."""

    what: str
    """The part of the output that requires it."""
    path: str
    query: dict[str, str]
    decode: Callable[[Object], Any]
    """Returns what is needed of an object; None if the object does not matter."""


def gather(kubectl: Kubectl, selection: Selection) -> Cluster:
    """Read what the selection requires. Raises KubectlError if nothing can be read."""
    wanted = _wanted(selection)
    with ThreadPoolExecutor(len(wanted)) as executor:
        results = dict(zip(wanted, executor.map(lambda each: _read(kubectl, each), wanted.values()), strict=True))
    failures = {name: found for name, found in results.items() if isinstance(found, KubectlError)}
    if {"nodes", "pods"} <= failures.keys():
        raise failures["nodes"]
    missing = tuple(f"not shown: {wanted[name].what}: {error}" for name, error in failures.items())
    read: dict[str, Any] = {name: None if name in failures else found for name, found in results.items()}
    return Cluster(time=time.time(), missing=missing, **read)


def _wanted(selection: Selection) -> dict[str, _Wanted]:
    """Return the lists by the fields of Cluster."""
    space = f"/namespaces/{selection.namespace}" if selection.namespace else ""
    one = selection.nodes[0] if len(selection.nodes) == 1 else ""
    on_node = {"fieldSelector": f"spec.nodeName={one}"} if one else {}
    named = {"fieldSelector": f"metadata.name={one}"} if one else {}
    label, source = {"labelSelector": f"app.kubernetes.io/name={NAME}"}, {"fieldSelector": f"source={NAME}"}
    sets, events = "/apis/apps/v1/daemonsets", "/api/v1/namespaces/default/events"
    classes = f"{_DRA}/deviceclasses"
    return {
        "nodes": _Wanted("nodes", "/api/v1/nodes", named, objects.node),
        "pods": _Wanted("phones of pods", f"/api/v1{space}/pods", on_node, objects.phone_pod),
        "plugin_pods": _Wanted("plugins", "/api/v1/pods", label, objects.plugin_pod),
        "daemon_sets": _Wanted("nodes that never had a plugin", sets, label, dict),
        "slices": _Wanted("phones of DRA", f"{_DRA}/resourceslices", on_node, dict),
        "claims": _Wanted("pods with phones of DRA", f"{_DRA}{space}/resourceclaims", {}, objects.claim),
        "classes": _Wanted("classes of waiting claims", classes, {}, dict),
        "events": _Wanted("what plugins report about their nodes", events, source, dict),
    }


def _read(kubectl: Kubectl, wanted: _Wanted) -> tuple[Any, ...] | KubectlError:
    """Return the objects of a list, or why they cannot be read."""
    try:
        found = map(wanted.decode, kubectl.list(wanted.path, wanted.query))
        return tuple(each for each in found if each is not None)
    except KubectlError as error:
        return () if "(NotFound)" in str(error) else error  # the API server has no DRA
