"""What the plugin's pod may do: checks for any of the DaemonSets in deploy/."""

import contextlib
import http.client
from typing import Any

from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsPod


def plugin_pod(node: Node) -> AsPod:
    """Return the plugin of a node, which is a pod."""
    assert isinstance(node.plugin, AsPod), "requires the plugin as a pod"
    return node.plugin


def plugin_spec(node: Node) -> dict[str, Any]:
    """Return the OCI runtime spec of the plugin's container."""
    return node.runtime.spec(plugin_pod(node).container_id())


def assert_no_privileges(node: Node) -> None:
    """Check that the process has no capability and no way to gain privileges, a seccomp filter, and uid 0."""
    status = node.runtime.process_status(plugin_pod(node).container_id())
    assert status["Uid"].split() == ["0"] * 4, status["Uid"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, f"{name}: {status[name]}"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), f"{status['NoNewPrivs']} {status['Seccomp']}"


def assert_no_devices(node: Node) -> None:
    """Check that the device cgroup is the runtime's default, which denies all devices of the host."""
    rules = plugin_spec(node)["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}, f"{rules[0]}"
    assert all(not rule["allow"] or "major" in rule for rule in rules), f"{rules}"


def assert_exposure(node: Node) -> None:
    """Check that the pod's address answers /metrics but not /status, which the program prints in the container."""
    plugin = plugin_pod(node)
    statuses = {}
    for path in ("/metrics", "/", "/status"):
        with contextlib.closing(http.client.HTTPConnection(plugin.status()["podIP"], 9478, timeout=10)) as connection:
            connection.request("GET", path)
            statuses[path] = connection.getresponse().status
    assert statuses == {"/metrics": 200, "/": 404, "/status": 404}, f"{statuses}"
    text = node.runtime.execute(plugin.container_id(), "aosp-plugin", "status")
    assert "registered with the kubelet" in text, text
