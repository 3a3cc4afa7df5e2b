"""Pods have devices of a resource whose name has changed, or whose devices another plugin has as well."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.common.waiting import until
from tests.e2e.kubelet.node import Node, Placed
from tests.e2e.kubelet.phones import PHONE
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import container

HANDSET: Final = "aosp.io/handset"
"""The other name of the resource."""
MOUNTED: Final = {f"phone{number}" for number in range(4)}
ON_TMPFS: Final = f"version: v1\nresource_name: {PHONE}\nphones: {{count: {len(MOUNTED)}}}\nverify: char\n"


@pytest.mark.parametrize("rename", [AsProcess.restart, AsProcess.reload])
def test_renamed(node: Node, rename: Callable[[AsProcess], None]) -> None:
    """The plugin restarts or reads SIGHUP: a pod keeps its device, and its container starts again with it."""
    with _named_as_before(node) as plugin:
        with node.running_with(1) as old:
            plugin.configure(_for_handsets(plugin))
            rename(plugin)
            node.wait_allocatable(node.devices - old.held(), HANDSET)
            with _running_handset(node) as new:
                _restart_container(old, new)
        node.wait_allocatable(node.devices, HANDSET)


def test_restarted_kubelet(node: Node) -> None:
    """The resource is renamed, and the kubelet restarts: a container that starts again then has its own device."""
    with _named_as_before(node) as plugin, node.running_with(1) as old:
        plugin.configure(_for_handsets(plugin))
        plugin.restart()
        until(lambda: node.kubelet.allocatable(HANDSET), f"devices of {HANDSET} are allocatable")
        with _running_handset(node) as new:
            node.kubelet.restart()
            until(lambda: node.kubelet.allocatable(HANDSET), "the plugin registers")
            old.wait_phase("Running")
            new.wait_phase("Running")
            _restart_container(old, new)


def test_two_names(node: Node) -> None:
    """A second plugin has the devices by another name: it offers none until the first ends, and then the free ones."""
    with _named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin):
        pod = node.place(container("main", 1, resource=HANDSET))
        try:
            assert pod.settled() == "Failed"
            pod.assert_rejected(f"no healthy devices present; cannot allocate unhealthy devices {HANDSET}")
        finally:
            node.remove(pod)
        assert node.status(HANDSET) == (len(node.devices), 0)
        node.wait_allocatable(node.devices)
        plugin.stop()
        node.wait_allocatable(node.devices - old.held(), HANDSET)


def test_first_returns(node: Node) -> None:
    """The first plugin starts again beside the second: the container of its pod starts again with its own device."""
    with _named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin) as second:
        plugin.stop()
        until(lambda: len(second.sockets()) == 2, "the second plugin registers the first name, too")
        node.wait_allocatable(node.devices - old.held(), HANDSET)
        with _running_handset(node) as new:
            plugin.start()
            until(lambda: len(second.sockets()) == 1, "the second plugin leaves the name to the first")
            old.restart_container()
            assert not old.held() & new.held(resource=HANDSET)
            assert not _own(old) & _own(new)


@contextlib.contextmanager
def _second_plugin(node: Node, first: AsProcess) -> Iterator[AsProcess]:
    """Run a plugin with the devices of the first one by the other name while the context lasts."""
    with tempfile.TemporaryDirectory() as directory:
        second = AsProcess(Path(directory, "second"), _for_handsets(first) + "listen: ''\n", first.program)
        before = node.kubelet.registrations(HANDSET)
        second.start()
        try:
            until(lambda: node.kubelet.registrations(HANDSET) > before, "the second plugin registers")
            yield second
        finally:
            second.stop()


@contextlib.contextmanager
def _named_as_before(node: Node) -> Iterator[AsProcess]:
    """Serve the resource by its first name when the context ends.

    A pod without a device runs meanwhile: the plugin does not believe a kubelet that lists no pod.
    """
    plugin = node.plugin
    assert isinstance(plugin, AsProcess), "requires the plugin as a process"
    text = plugin.configured()
    with node.running(container("main")):
        try:
            yield plugin
        finally:
            plugin.configure(text)
            plugin.restart()
            node.wait_allocatable(node.devices)


def _for_handsets(plugin: AsProcess) -> str:
    """Return the configuration of a plugin with the other name."""
    return plugin.configured().replace(PHONE, HANDSET)


def _running_handset(node: Node) -> contextlib.AbstractContextManager[Placed]:
    """Run a pod with a device by the other name while the context lasts."""
    return node.running(container("main", 1, resource=HANDSET))


def _restart_container(old: Placed, new: Placed) -> None:
    """Restart a pod's container, and check that it has the same device as before, and another pod another one."""
    before = _own(old)
    old.restart_container()
    now, others = _own(old), _own(new)
    assert now == before, f"the pod has {now}, before: {before}; a pod of {HANDSET} has {others}"
    assert not now & others, f"both pods have {now & others}"


def _own(pod: Placed) -> set[str]:
    """Return what no other pod may have: the file system of a pod's phone, or its binder devices."""
    view = pod.view()
    mounted = view.file_systems.get("/dev/binderfs")
    return {mounted} if mounted else view.binder_devices
