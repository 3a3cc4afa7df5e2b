"""A device has one tenant, whatever the configurations of plugins on the node call it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.daemon.device_records import DIRECTORY
from kubelet_standin import Pod
from tests.backends import file_systems
from tests.served_node import ServedNode, node_with_pods
from tests.support import listed, until
from tests.tmpfs_binderfs import Mounts

OLD, NEW = "aosp.io/binder", "example.com/binder"


def devices_of(node: ServedNode, pod: Pod, resource: str) -> set[str]:
    return {device for device, (name, _) in node.kubelet.allocated(resource).items() if name == pod.name}


@pytest.fixture
async def node(short_directory: Path) -> AsyncIterator[ServedNode]:
    """Yield a node with found devices."""
    async with node_with_pods(short_directory) as node:
        node.devices.add(*range(4))
        yield node


@pytest.fixture
async def phones(short_directory: Path, directory: Mounts) -> AsyncIterator[ServedNode]:
    """Yield a node with phones."""
    ordered = {"count": 4, "directory": str(directory.path)}
    async with node_with_pods(
        short_directory, device_dir="/dev", phones=ordered, shared_devices=[], verify="char"
    ) as node:
        yield node


async def test_log_names_a_device_that_a_pod_has_by_another_name_until_it_ends(node: ServedNode) -> None:
    async with node.offering(OLD, 4):
        old = await node.start_pod("old", OLD)
    (device,) = devices_of(node, old, OLD)
    async with node.offering(NEW, 3) as serve:
        await node.start_pod("new", NEW)  # a kubelet without any pod is not believed
        await until(lambda: any(f"{device}:in-use-by-other-resource" in line for line in serve.log))
    await node.kubelet.finish(old)
    records = Path(node.kubelet.directory) / DIRECTORY
    async with node.offering(NEW, 4):
        await until(lambda: {path.name.partition("_")[0] for path in records.glob("*.json")} == {"example.com"})


async def test_device_that_appears_in_two_resources_has_one_tenant(node: ServedNode) -> None:
    """They have directories that a link joins."""
    (node.directory / "link").symlink_to(node.directory / "dev")
    resources = [
        {"resource_name": OLD, "device_prefix": "ab"},
        {"resource_name": NEW, "device_prefix": "ab-", "device_dir": str(node.directory / "link")},
    ]
    (node.devices.directory / "ab0").touch()
    async with node.serve(resources=resources) as serve:
        await listed(node.kubelet, 1, OLD)
        await node.start_pod("earlier", OLD)
        (node.devices.directory / "ab-1-binder").touch()
        await node.kubelet.wait_for(lambda kubelet: [kubelet.resource(each).capacity for each in (OLD, NEW)] == [2, 1])
        assert sum(node.kubelet.resource(each).allocatable for each in (OLD, NEW)) == 2
        await until(lambda: any("offered-by-other-resource: this plugin offers it as" in line for line in serve.log))


async def test_phone_of_a_running_pod_stays_as_it_is_under_another_name(phones: ServedNode, directory: Mounts) -> None:
    """Also if its container starts again, or after a restart of the kubelet, which does not ask the plugin then.

    A kubelet asks the plugin that gave the phone, if that asked for it: the former resource stays registered. The phone
    is replaced when its container starts again by the old name.
    """
    async with phones.offering(OLD, 4):
        old = await phones.start_pod("old", OLD)
    (phone,) = devices_of(phones, old, OLD)
    before = file_systems(directory.path)[phone]
    async with phones.offering(NEW, 3):
        new = [await phones.start_pod(f"new-{number}", NEW) for number in range(3)]
        await phones.kubelet.wait_for(
            lambda kubelet: kubelet.resource(OLD).connected and not kubelet.resource(OLD).capacity
        )
        await phones.kubelet.start_container(old, "android")
        assert file_systems(directory.path)[phone] == before
    await phones.kubelet.restart()
    async with phones.offering(NEW, 3):
        await phones.kubelet.start_container(old, "android")
        assert file_systems(directory.path)[phone] == before
    for pod in new:
        await phones.kubelet.finish(pod)
    async with phones.offering(OLD, 4):
        await phones.kubelet.start_container(old, "android")
    assert file_systems(directory.path)[phone] != before
