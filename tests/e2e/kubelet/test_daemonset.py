"""The plugin as the DaemonSet's pod: it has the privileges that deploy/ grants, and no others."""

from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.rights import assert_exposure, assert_no_devices, assert_no_privileges, plugin_pod, plugin_spec

_SLOW = "import os, sys, time; time.sleep(75); os.execv(sys.argv[1], sys.argv[1:])"
"""Starts a program late. Without a probe for the start, the kubelet killed the plugin after 65 s."""
_OF_CRI_O = "/run/.containerenv"
"""A file that CRI-O mounts in each container, with its own name and version."""


def test_ready(node: Node) -> None:
    """The DaemonSet's probes succeed on the pod's address."""
    plugin = plugin_pod(node)
    until(lambda: plugin.status()["containerStatuses"][0]["ready"], "the pod is ready")
    assert f"AOSP_PLUGIN_LISTEN={plugin.status()['podIP']}:9478" in plugin_spec(node)["process"]["env"]


def test_exposure(node: Node) -> None:
    assert_exposure(node)


def test_no_privileges(node: Node) -> None:
    assert_no_privileges(node)


def test_file_systems(node: Node) -> None:
    """The root file system is read-only; host paths are the DaemonSet's mounts, writable only if declared so."""
    spec = plugin_spec(node)
    assert spec["root"]["readonly"], "the root file system is writable"
    mounted = {mount["destination"]: set(mount["options"]) for mount in spec["mounts"]}
    declared = plugin_pod(node).manifest["spec"]["containers"][0]["volumeMounts"]
    for mount in declared:
        options = mounted[mount["mountPath"]]
        assert ("ro" in options) == mount.get("readOnly", False), f"{mount['mountPath']}: {options}"
        assert ("rslave" in options) == ("mountPropagation" in mount), f"{mount['mountPath']}: {options}"
    hosts = {path for path in mounted if path.startswith(("/host", "/var", "/run"))} - {_OF_CRI_O}
    assert hosts <= {mount["mountPath"] for mount in declared}


def test_no_devices(node: Node) -> None:
    assert_no_devices(node)


def test_slow_start(node: Node) -> None:
    """The kubelet lets the plugin start that needs a minute, as on a node that starts many pods at once."""
    plugin = plugin_pod(node)
    (container,) = plugin.manifest["spec"]["containers"]
    plugin.stop()
    container["command"] = ["/opt/venv/bin/python", "-c", _SLOW, "/opt/venv/bin/aosp-plugin"]
    plugin.start()
    try:
        until(lambda: plugin.status()["containerStatuses"][0]["ready"], "the pod is ready", seconds=6 * PATIENCE)
        assert plugin.status()["containerStatuses"][0]["restartCount"] == 0
    finally:
        plugin.stop()
        del container["command"]
        plugin.start()
        node.wait_allocatable(node.devices)
