"""Pods have devices of a resource whose name has changed, or whose devices another plugin has as well."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.common.waiting import until
from tests.e2e.kubelet import renaming
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.phones import PHONE
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import container

MOUNTED: Final = {f"phone{number}" for number in range(4)}
ON_TMPFS: Final = f"version: v1\nresource_name: {PHONE}\nphones: {{count: {len(MOUNTED)}}}\nverify: char\n"


@pytest.mark.parametrize("rename", [AsProcess.restart, AsProcess.reload])
def test_renamed(node: Node, rename: Callable[[AsProcess], None]) -> None:
    """The plugin restarts or reads SIGHUP: a pod keeps its device, and its container starts again with it."""
    with renaming.named_as_before(node) as plugin:
        with node.running_with(1) as old:
            plugin.configure(renaming.for_handsets(plugin))
            rename(plugin)
            node.wait_allocatable(node.devices - old.held(), renaming.HANDSET)
            with renaming.running_handset(node) as new:
                renaming.restart_container(old, new)
        node.wait_allocatable(node.devices, renaming.HANDSET)


def test_restarted_kubelet(node: Node) -> None:
    """The resource is renamed, and the kubelet restarts: a container that starts again then has its own device."""
    with renaming.renamed_before_restart(node) as (old, new):
        renaming.restart_container(old, new)


def test_two_names(node: Node) -> None:
    """A second plugin has the devices by another name: it offers none until the first ends, and then the free ones."""
    with renaming.named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin):
        pod = node.place(container("main", 1, resource=renaming.HANDSET))
        try:
            assert pod.settled() == "Failed"
            pod.assert_rejected(f"no healthy devices present; cannot allocate unhealthy devices {renaming.HANDSET}")
        finally:
            node.remove(pod)
        assert node.status(renaming.HANDSET) == (len(node.devices), 0)
        node.wait_allocatable(node.devices)
        plugin.stop()
        node.wait_allocatable(node.devices - old.held(), renaming.HANDSET)


def test_first_returns(node: Node) -> None:
    """The first plugin starts again beside the second: the container of its pod starts again with its own device."""
    with renaming.named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin) as second:
        plugin.stop()
        until(lambda: len(second.sockets()) == 2, "the second plugin registers the first name, too")
        node.wait_allocatable(node.devices - old.held(), renaming.HANDSET)
        with renaming.running_handset(node) as new:
            plugin.start()
            until(lambda: len(second.sockets()) == 1, "the second plugin leaves the name to the first")
            old.restart_container()
            assert not old.held() & new.held(resource=renaming.HANDSET)
            assert not renaming.own(old) & renaming.own(new)


@contextlib.contextmanager
def _second_plugin(node: Node, first: AsProcess) -> Iterator[AsProcess]:
    """Run a plugin with the devices of the first one by the other name while the context lasts."""
    with tempfile.TemporaryDirectory() as directory:
        second = AsProcess(Path(directory, "second"), renaming.for_handsets(first) + "listen: ''\n", first.program)
        before = node.kubelet.registrations(renaming.HANDSET)
        second.start()
        try:
            until(lambda: node.kubelet.registrations(renaming.HANDSET) > before, "the second plugin registers")
            yield second
        finally:
            second.stop()
