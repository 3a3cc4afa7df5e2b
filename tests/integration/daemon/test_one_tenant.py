"""A device has one tenant, whatever the configurations of plugins on the node call it."""

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.daemon.device_records import DIRECTORY
from aosp_plugin.framework.cdi import spec_path
from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import DeviceDirectory, ServeHere, listed, until
from tests.tmpfs_binderfs import Mounts

OLD, NEW = "aosp.io/binder", "example.com/binder"


class Node:
    """A kubelet, and the plugins of a node with four binder devices or phones."""

    def __init__(self, directory: Path, devices: Mapping[str, Any]) -> None:
        """``devices`` are the configuration keys of the devices."""
        self.directory = directory
        self.devices = DeviceDirectory(directory / "dev")
        self.kubelet = Kubelet(directory / "k")
        self._devices = devices
        self._files = 0

    def configuration(self, **keys: Any) -> Path:
        """Write a configuration, and return its path."""
        process = {"kubelet_dir": self.kubelet.directory, "pod_resources_socket": str(self.directory / "pods.sock")}
        process["listen"] = ""
        path = self.directory / f"{self._files}.yaml"
        self._files += 1
        text = {"version": "v1", **process, **self._devices, **keys}
        path.write_text(json.dumps(text), encoding="utf-8")
        return path

    @contextlib.asynccontextmanager
    async def serving(self, resource: str, count: int, **keys: Any) -> AsyncIterator[ServeHere]:
        """Serve a resource inside the context, from when the kubelet has ``count`` allocatable devices of it."""
        flags = (f"--config={self.configuration(resource_name=resource, **keys)}",)
        async with ServeHere(self.devices, self.kubelet.directory, *flags, usual_flags=False) as serve:
            await listed(self.kubelet, count, resource)
            yield serve

    @contextlib.asynccontextmanager
    async def serving_all(self, *resources: Mapping[str, Any]) -> AsyncIterator[ServeHere]:
        """Serve several resources inside the context."""
        path = self.configuration(resources=resources)
        async with ServeHere(self.devices, self.kubelet.directory, f"--config={path}", usual_flags=False) as serve:
            yield serve

    async def start(self, name: str, resource: str, count: int = 1) -> Pod:
        """Admit a pod and start its container."""
        pod = Pod(name, [Container("android", {resource: count})])
        await self.kubelet.admit(pod)
        await self.kubelet.start_container(pod, "android")
        return pod

    def of(self, pod: Pod, resource: str) -> set[str]:
        """Return the devices of a pod."""
        return {device for device, (name, _) in self.kubelet.allocated(resource).items() if name == pod.name}


@pytest.fixture
async def node(short_directory: Path) -> AsyncIterator[Node]:
    """Yield a node with found devices."""
    node = Node(short_directory, {"device_dir": str(short_directory / "dev"), "verify": "file"})
    node.devices.add(*range(4))
    async with node.kubelet, PodResources(node.kubelet, short_directory / "pods.sock"):
        yield node


@pytest.fixture
def mounts(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    with contextlib.closing(Mounts(short_directory / "p" / "phones", monkeypatch)) as mounted:
        yield mounted


@pytest.fixture
async def phones(short_directory: Path, mounts: Mounts) -> AsyncIterator[Node]:
    """Yield a node with phones."""
    mounts.path.parent.mkdir()
    keys = {"phones": {"count": 4, "directory": str(mounts.path)}, "shared_devices": [], "verify": "char"}
    node = Node(short_directory, keys)
    async with node.kubelet, PodResources(node.kubelet, short_directory / "pods.sock"):
        yield node


async def test_renamed_resource_gives_no_device_that_a_pod_has_by_the_old_name(node: Node) -> None:
    async with node.serving(OLD, 4):
        old = await node.start("old", OLD)
    async with node.serving(NEW, 3):
        new = await node.start("new", NEW, 3)
    assert not node.of(old, OLD) & node.of(new, NEW)


async def test_reload_with_another_name_gives_no_device_that_a_pod_has_by_the_old_name(node: Node) -> None:
    async with node.serving(OLD, 4) as serve:
        old = await node.start("old", OLD)
        os.replace(node.configuration(resource_name=NEW), node.directory / "0.yaml")
        serve.signal(signal.SIGHUP)
        await listed(node.kubelet, 3, NEW)
        new = await node.start("new", NEW, 3)
    assert not node.of(old, OLD) & node.of(new, NEW)


async def test_log_names_a_device_that_a_pod_has_by_another_name_until_it_ends(node: Node) -> None:
    async with node.serving(OLD, 4):
        old = await node.start("old", OLD)
    (device,) = node.of(old, OLD)
    async with node.serving(NEW, 3) as serve:
        await node.start("new", NEW)  # a kubelet without any pod is not believed
        await until(lambda: any(f"{device}:in-use-by-other-resource" in line for line in serve.log))
    await node.kubelet.finish(old)
    records = Path(node.kubelet.directory) / DIRECTORY
    async with node.serving(NEW, 4):
        await until(lambda: {path.name.partition("_")[0] for path in records.glob("*.json")} == {"example.com"})


async def test_device_that_was_in_a_larger_set_has_one_tenant(node: Node) -> None:
    async with node.serving(OLD, 2, sets={"size": 2}):
        old = await node.start("old", OLD)
    (device,) = node.of(old, OLD)
    async with node.serving(OLD, 3):
        new = await node.start("new", OLD, 2)
    second = {"aosp_binder0": "aosp_binder1", "aosp_binder2": "aosp_binder3"}[device]
    assert node.of(new, OLD).isdisjoint({device, second})


async def test_later_one_of_two_plugins_withholds_the_devices_that_both_have(node: Node) -> None:
    async with node.serving(OLD, 4) as first:
        old = await node.start("old", OLD)
        async with node.serving(NEW, 0) as second:
            await until(lambda: any("offered-by-other-resource" in line for line in second.log))
            assert first.log
            await node.start("another", OLD)
    async with node.serving(NEW, 2):
        new = await node.start("new", NEW, 2)
    assert not node.of(old, OLD) & node.of(new, NEW)


async def test_link_to_the_device_of_another_resource_is_that_device(node: Node) -> None:
    links = node.directory / "links"
    links.mkdir()
    for number in range(4):
        (links / f"other{number}").symlink_to(node.directory / "dev" / f"aosp_binder{number}")
    async with node.serving(OLD, 4):
        await node.start("old", OLD, 3)
    async with node.serving(NEW, 1, device_dir=str(links), device_prefix="other"):
        pass


@pytest.mark.parametrize("place", ["one directory", "directories that a link joins"])
async def test_device_that_appears_in_two_resources_has_one_tenant(node: Node, place: str) -> None:
    (node.directory / "link").symlink_to(node.directory / "dev")
    other = {"sets": {"names": ["binder"], "pattern": "ab{set}-{name}"}} if place == "one directory" else {}
    directory = str(node.directory / ("dev" if other else "link"))
    resources: list[Mapping[str, Any]] = [
        {"resource_name": OLD, "device_prefix": "ab"},
        {"resource_name": NEW, "device_prefix": "ab-", "device_dir": directory, **other},
    ]
    (node.devices.directory / "ab0").touch()
    async with node.serving_all(*resources) as serve:
        await listed(node.kubelet, 1, OLD)
        await node.start("earlier", OLD)
        (node.devices.directory / "ab-1-binder").touch()
        await node.kubelet.wait_for(lambda kubelet: [kubelet.resource(each).capacity for each in (OLD, NEW)] == [2, 1])
        assert sum(node.kubelet.resource(each).allocatable for each in (OLD, NEW)) == 2
        await until(lambda: any("offered-by-other-resource: this plugin offers it as" in line for line in serve.log))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")


def phone_mounts(mounts: Mounts) -> dict[str, int]:
    return {phone: os.stat(mounts.path / phone / "binder").st_ctime_ns for phone in mounts.mounted()}


@needs_root
async def test_phone_of_a_running_pod_stays_as_it_is_under_another_name(phones: Node, mounts: Mounts) -> None:
    """Also if its container starts again after a restart of the kubelet, which does not ask the plugin then."""
    async with phones.serving(OLD, 4):
        old = await phones.start("old", OLD)
    (phone,) = phones.of(old, OLD)
    before = phone_mounts(mounts)[phone]
    async with phones.serving(NEW, 3):
        for number in range(3):
            await phones.start(f"new-{number}", NEW)
        assert phone_mounts(mounts)[phone] == before
    await phones.kubelet.restart()
    async with phones.serving(NEW, 3):
        await phones.kubelet.start_container(old, "android")
        assert phone_mounts(mounts)[phone] == before


@needs_root
async def test_phones_of_another_name_are_not_removed_by_a_lower_count(phones: Node, mounts: Mounts) -> None:
    async with phones.serving(OLD, 4):
        for number in range(4):
            await phones.start(f"old-{number}", OLD)
    before = phone_mounts(mounts)
    fewer = {"count": 1, "directory": str(mounts.path)}
    async with phones.serving(NEW, 0, phones=fewer):  # which serves OLD as well when it knows the pods
        await phones.kubelet.wait_for(lambda kubelet: kubelet.resource(OLD).connected)
    assert phone_mounts(mounts) == before


@needs_root
async def test_container_starts_again_after_its_resource_was_renamed(phones: Node, mounts: Mounts) -> None:
    """A kubelet asks the plugin that gave the phone, if that asked for it: the former resource stays registered."""
    async with phones.serving(OLD, 4):
        old = await phones.start("old", OLD)
    (phone,) = phones.of(old, OLD)
    before = phone_mounts(mounts)[phone]
    async with phones.serving(NEW, 3):
        await phones.kubelet.wait_for(
            lambda kubelet: kubelet.resource(OLD).connected and not kubelet.resource(OLD).capacity
        )
        await phones.kubelet.start_container(old, "android")
        assert phone_mounts(mounts)[phone] == before
    async with phones.serving(OLD, 4):
        await phones.kubelet.start_container(old, "android")
    assert phone_mounts(mounts)[phone] != before


@needs_root
async def test_cdi_spec_of_a_former_resource_stays_until_its_pods_have_ended(phones: Node) -> None:
    """Their containers refer to it by CDI names when they start again."""
    cdi = str(phones.directory / "cdi")
    keys: dict[str, Any] = {"device_list": ["cdi-cri"], "cdi_dir": cdi}
    spec = Path(spec_path(cdi, OLD))
    async with phones.serving(OLD, 4, **keys):
        old = await phones.start("old", OLD)
        await until(spec.exists)
    async with phones.serving(NEW, 3, **keys):
        await phones.start("new", NEW)
        await phones.kubelet.wait_for(lambda kubelet: kubelet.resource(OLD).connected)
        await phones.kubelet.start_container(old, "android")
        await until(lambda: phones.of(old, OLD).pop() in spec.read_text(encoding="utf-8"))
    await phones.kubelet.finish(old)
    async with phones.serving(NEW, 4, **keys):
        await until(lambda: not spec.exists())


@needs_root
async def test_container_starts_again_whose_phone_the_configuration_no_longer_has(phones: Node, mounts: Mounts) -> None:
    """The directory was moved, and the count lowered: the phone stays as its pod got it."""
    async with phones.serving(OLD, 4):
        pods = [await phones.start(f"old-{number}", OLD) for number in range(4)]
    before = phone_mounts(mounts)
    moved = {"count": 2, "directory": str(mounts.path.parent / "moved")}
    async with phones.serving(OLD, 2, phones=moved):
        for pod in pods:
            await phones.kubelet.start_container(pod, "android")
    assert phone_mounts(mounts) == before
