"""Items for the plugin as a pod: it is the DaemonSet's, and has no right that deploy/ does not give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

item = Items()


def _parts(node: Node) -> tuple[AsPod, dict[str, Any], dict[str, Any]]:
    """Return the plugin, its container as the DaemonSet has it, and as the runtime runs it."""
    assert isinstance(node.plugin, AsPod), "for the plugin as a pod"
    wanted: dict[str, Any] = node.plugin.manifest["spec"]["containers"][0]
    return node.plugin, wanted, node.runtime.spec(node.plugin.container_id())


@item("The DaemonSet's probes find it ready, on the pod's own address")
def ready(node: Node) -> None:
    plugin, _, spec = _parts(node)
    until(lambda: plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")
    address = plugin.status()["podIP"]
    assert f"--listen={address}:9478" in spec["process"]["args"], f"{spec['process']['args']}"


@item("It runs the image's program with the DaemonSet's arguments")
def command(node: Node) -> None:
    plugin, wanted, spec = _parts(node)
    arguments = [one.replace("$(POD_IP)", plugin.status()["podIP"]) for one in wanted["args"]]
    assert spec["process"]["args"] == ["aosp-plugin", *arguments], f"{spec['process']['args']}"


@item("The kernel says of its process: no capability, no new privileges, seccomp filter on; uid 0")
def no_privileges(node: Node) -> None:
    plugin, _, _ = _parts(node)
    status = node.runtime.process_status(plugin.container_id())
    assert status["Uid"].split() == ["0"] * 4, status["Uid"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, f"{name}: {status[name]}"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), f"{status['NoNewPrivs']} {status['Seccomp']}"


@item("Its root is read-only; the host's files are those of the DaemonSet's mounts, writable only where it says so")
def file_systems(node: Node) -> None:
    _, wanted, spec = _parts(node)
    assert spec["root"]["readonly"], "the root file system is writable"
    given = {mount["destination"]: set(mount["options"]) for mount in spec["mounts"]}
    for mount in wanted["volumeMounts"]:
        options = given[mount["mountPath"]]
        assert ("ro" in options) == mount.get("readOnly", False), f"{mount['mountPath']}: {options}"
        assert ("rslave" in options) == ("mountPropagation" in mount), f"{mount['mountPath']}: {options}"
    hosts = {path for path in given if path.startswith(("/host", "/var", "/run"))}
    assert hosts <= {mount["mountPath"] for mount in wanted["volumeMounts"]}, f"{hosts}"


@item("Its device cgroup is the runtime's default: no node of the host's opens")
def no_devices(node: Node) -> None:
    _, _, spec = _parts(node)
    rules = spec["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}, f"{rules[0]}"
    assert all(not rule["allow"] or "major" in rule for rule in rules), f"{rules}"
