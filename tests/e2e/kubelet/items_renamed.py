"""Items: pods have devices of a resource whose name has changed, or whose devices another plugin has as well."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_phones import PHONE
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.kubelet.node import Node, Placed

HANDSET: Final = "aosp.io/handset"
"""The other name of the resource."""
MOUNTED: Final = {f"phone{number}" for number in range(4)}
ON_TMPFS: Final = f"version: v1\nresource_name: {PHONE}\nphones: {{count: {len(MOUNTED)}}}\nverify: char\n"

item = Items()


@item(
    "The resource is renamed, and the plugin restarts: a pod keeps its device, and its container starts again with it"
)
def restarted_plugin(node: Node) -> None:
    _keeps_its_device(node, _restart)


@item("The resource is renamed by SIGHUP: a pod keeps its device, and its container starts again with it")
def reloaded_plugin(node: Node) -> None:
    _keeps_its_device(node, AsProcess.reload)


def _keeps_its_device(node: Node, rename: Callable[[AsProcess], None]) -> None:
    with _named_as_before(node) as plugin:
        with node.running_with(1) as old:
            plugin.configure(_for_handsets(plugin.configured()))
            rename(plugin)
            node.wait_allocatable(node.devices - old.held(), HANDSET)
            with _running_handset(node) as new:
                restart_container(old, new)
        node.wait_allocatable(node.devices, HANDSET)


@item("The resource is renamed, and the kubelet restarts: a container that starts again then has its own device")
def restarted_kubelet(node: Node) -> None:
    with renamed_before_restart(node) as (old, new):
        restart_container(old, new)


@contextlib.contextmanager
def renamed_before_restart(node: Node) -> Iterator[tuple[Placed, Placed]]:
    """Run a pod, rename the resource, run another pod, and restart the kubelet; yield both pods."""
    with _named_as_before(node) as plugin, node.running_with(1) as old:
        plugin.configure(_for_handsets(plugin.configured()))
        _restart(plugin)
        until(lambda: node.kubelet.allocatable(HANDSET), f"devices of {HANDSET} are allocatable")
        with _running_handset(node) as new:
            node.kubelet.stop()
            node.kubelet.start()
            until(lambda: node.kubelet.allocatable(HANDSET), "the plugin registers")
            old.wait_phase("Running")
            new.wait_phase("Running")
            yield old, new


def restart_container(old: Placed, new: Placed) -> None:
    """Restart a pod's container, and check that it has the same device as before, and another pod another one."""
    before = _own(old)
    old.restart_container()
    now, others = _own(old), _own(new)
    assert now == before, f"the pod has {now}, before: {before}; a pod of {HANDSET} has {others}"
    assert not now & others, f"both pods have {now & others}"


@item("A second plugin has the devices by another name: it offers none until the first ends, and then the free ones")
def two_names(node: Node) -> None:
    with _named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin):
        pod = node.place(container("main", 1, resource=HANDSET))
        try:
            assert pod.settled() == "Failed", f"a pod has {pod.held(resource=HANDSET)}, another one {old.held()}"
            pod.assert_rejected(f"no healthy devices present; cannot allocate unhealthy devices {HANDSET}")
        finally:
            node.remove(pod)
        assert node.status(HANDSET) == (len(node.devices), 0), f"capacity and allocatable: {node.status(HANDSET)}"
        node.wait_allocatable(node.devices)
        plugin.stop()
        node.wait_allocatable(node.devices - old.held(), HANDSET)


@item("The first plugin starts again beside the second: the container of its pod starts again with its own device")
def first_returns(node: Node) -> None:
    with _named_as_before(node) as plugin, node.running_with(1) as old, _second_plugin(node, plugin) as second:
        plugin.stop()
        until(lambda: len(second.sockets()) == 2, "the second plugin registers the first name, too")
        node.wait_allocatable(node.devices - old.held(), HANDSET)
        with _running_handset(node) as new:
            plugin.start()
            until(lambda: len(second.sockets()) == 1, "the second plugin leaves the name to the first")
            old.restart_container()
            assert not old.held() & new.held(resource=HANDSET), f"both pods have {old.held()}"
            assert not _own(old) & _own(new), f"both pods have {_own(old)}"


@contextlib.contextmanager
def _second_plugin(node: Node, first: AsProcess) -> Iterator[AsProcess]:
    """Run a plugin with the devices of the first one by the other name while the context lasts."""
    with tempfile.TemporaryDirectory() as directory:
        text = _for_handsets(first.configured()) + "listen: ''\n"
        second = AsProcess(Path(directory, "second"), text, first.program)
        before = node.kubelet.metric(REGISTRATIONS, HANDSET)
        second.start()
        try:
            until(lambda: node.kubelet.metric(REGISTRATIONS, HANDSET) > before, "the second plugin registers")
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
            _restart(plugin)
            node.wait_allocatable(node.devices)


def _for_handsets(text: str) -> str:
    """Return a configuration with the other name."""
    return text.replace(PHONE, HANDSET)


def _restart(plugin: AsProcess) -> None:
    if plugin.running():
        plugin.stop()
    plugin.start()


def _running_handset(node: Node) -> contextlib.AbstractContextManager[Placed]:
    """Run a pod with a device by the other name while the context lasts."""
    return node.running(container("main", 1, resource=HANDSET))


def _own(pod: Placed) -> set[str]:
    """Return what no other pod may have: the file system of a pod's phone, or its binder devices."""
    view = pod.view()
    mounted = view.file_systems.get("/dev/binderfs")
    return {mounted} if mounted else view.binder_devices
