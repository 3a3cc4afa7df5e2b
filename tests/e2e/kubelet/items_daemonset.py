"""Items for the plugin as the DaemonSet's pod: it has the privileges that deploy/ grants, and no others."""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING, Any

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

_OF_CRI_O = "/run/.containerenv"
"""A file that CRI-O mounts in each container, with its own name and version."""

item = Items()


def _parts(node: Node) -> tuple[AsPod, dict[str, Any], dict[str, Any]]:
    """Return the plugin, the DaemonSet's container, and the container's OCI runtime spec."""
    assert isinstance(node.plugin, AsPod), "requires the plugin as a pod"
    template: dict[str, Any] = node.plugin.manifest["spec"]["containers"][0]
    return node.plugin, template, node.runtime.spec(node.plugin.container_id())


@item("The DaemonSet's probes succeed on the pod's address")
def ready(node: Node) -> None:
    plugin, _, spec = _parts(node)
    until(lambda: plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")
    address = plugin.status()["podIP"]
    assert f"AOSP_PLUGIN_LISTEN={address}:9478" in spec["process"]["env"], f"{spec['process']['env']}"


@item("The pod's address answers /metrics but not /status; `aosp-plugin status` in the container prints the status")
def exposure(node: Node) -> None:
    plugin, _, _ = _parts(node)
    statuses = {}
    for path in ("/metrics", "/", "/status"):
        with contextlib.closing(http.client.HTTPConnection(plugin.status()["podIP"], 9478, timeout=10)) as connection:
            connection.request("GET", path)
            statuses[path] = connection.getresponse().status
    assert statuses == {"/metrics": 200, "/": 404, "/status": 404}, f"{statuses}"
    text = node.runtime.execute(plugin.container_id(), "aosp-plugin", "status")
    assert "registered with the kubelet" in text, text


@item("The process has no capability and no way to gain privileges, and a seccomp filter; it runs as uid 0")
def no_privileges(node: Node) -> None:
    plugin, _, _ = _parts(node)
    status = node.runtime.process_status(plugin.container_id())
    assert status["Uid"].split() == ["0"] * 4, status["Uid"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, f"{name}: {status[name]}"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), f"{status['NoNewPrivs']} {status['Seccomp']}"


@item("The root file system is read-only; host paths are the DaemonSet's mounts, writable only if declared so")
def file_systems(node: Node) -> None:
    _, template, spec = _parts(node)
    assert spec["root"]["readonly"], "the root file system is writable"
    mounted = {mount["destination"]: set(mount["options"]) for mount in spec["mounts"]}
    for mount in template["volumeMounts"]:
        options = mounted[mount["mountPath"]]
        assert ("ro" in options) == mount.get("readOnly", False), f"{mount['mountPath']}: {options}"
        assert ("rslave" in options) == ("mountPropagation" in mount), f"{mount['mountPath']}: {options}"
    hosts = {path for path in mounted if path.startswith(("/host", "/var", "/run"))} - {_OF_CRI_O}
    assert hosts <= {mount["mountPath"] for mount in template["volumeMounts"]}, f"{hosts}"


@item("The device cgroup is the runtime's default: it denies all devices of the host")
def no_devices(node: Node) -> None:
    _, _, spec = _parts(node)
    rules = spec["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}, f"{rules[0]}"
    assert all(not rule["allow"] or "major" in rule for rule in rules), f"{rules}"
