"""A resource whose name changes, or that a second plugin has by another name, while pods have its devices."""

import contextlib
from collections.abc import Iterator
from typing import Final

from tests.e2e.common.waiting import until
from tests.e2e.kubelet.node import Node, Placed
from tests.e2e.kubelet.phones import PHONE
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import container

HANDSET: Final = "aosp.io/handset"
"""The other name of the resource."""


@contextlib.contextmanager
def named_as_before(node: Node) -> Iterator[AsProcess]:
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


def for_handsets(plugin: AsProcess) -> str:
    """Return the configuration of a plugin with the other name."""
    return plugin.configured().replace(PHONE, HANDSET)


def running_handset(node: Node) -> contextlib.AbstractContextManager[Placed]:
    """Run a pod with a device by the other name while the context lasts."""
    return node.running(container("main", 1, resource=HANDSET))


@contextlib.contextmanager
def renamed_before_restart(node: Node) -> Iterator[tuple[Placed, Placed]]:
    """Run a pod, rename the resource, run another pod, and restart the kubelet; yield both pods."""
    with named_as_before(node) as plugin, node.running_with(1) as old:
        plugin.configure(for_handsets(plugin))
        plugin.restart()
        until(lambda: node.kubelet.allocatable(HANDSET), f"devices of {HANDSET} are allocatable")
        with running_handset(node) as new:
            node.kubelet.restart()
            until(lambda: node.kubelet.allocatable(HANDSET), "the plugin registers")
            old.wait_phase("Running")
            new.wait_phase("Running")
            yield old, new


def restart_container(old: Placed, new: Placed) -> None:
    """Restart a pod's container, and check that it has the same device as before, and another pod another one."""
    before = own(old)
    old.restart_container()
    now, others = own(old), own(new)
    assert now == before, f"the pod has {now}, before: {before}; a pod of {HANDSET} has {others}"
    assert not now & others, f"both pods have {now & others}"


def own(pod: Placed) -> set[str]:
    """Return what no other pod may have: the file system of a pod's phone, or its binder devices."""
    view = pod.view()
    mounted = view.file_systems.get("/dev/binderfs")
    return {mounted} if mounted else view.binder_devices
