"""The README's examples, loaded and served; those that take a real binderfs run in ``tests/e2e/kernel`` as well."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.testing import Container, Kubelet, Pod
from aosp_plugin.testing.podresources_server import PodResources
from tests.readme import examples, status
from tests.support import Nodes, Serve, listed

if TYPE_CHECKING:
    from pathlib import Path

    from aosp_plugin.testing import ContainerAllocation

EXAMPLES = examples()
PHONE = "aosp.io/phone"
BINDER = "aosp.io/binder"
PATHS = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
COUNT = 361

EXPECTED = {
    "At Android's paths": {BINDER: (COUNT, COUNT)},
    "One device, one phone": {PHONE: (120, 121)},
    "One device, one phone 2": {PHONE: (120, 120)},
    "One device, one phone 3": {PHONE: (2, 2)},
    "Several resources": {PHONE: (120, 121), "aosp.io/sidecar": (2, 2)},
    "Provisioned binder devices": {BINDER: (COUNT, COUNT)},
    "A clean node for every start of a container": {BINDER: (0, COUNT)},
    "Leaks": {BINDER: (COUNT, COUNT)},
    "CDI": {PHONE: (120, 121)},
    "NUMA": {BINDER: (COUNT, COUNT)},
    "Sharing": {BINDER: (2 * COUNT, 2 * COUNT)},
}
"""Each example to what it advertises of 361 numbered nodes, two of a sidecar's and two phones' directories: how many
are healthy, and how many in all. Plain files can't be made anew."""


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(tmp_path / "dev")
    made.make(*range(COUNT))
    for phone in ("phone1", "phone7"):
        (made.directory / phone).mkdir()
        for name in ("binder", "hwbinder", "vndbinder"):
            (made.directory / phone / name).touch()
    for number in range(2):
        (made.directory / f"sidecar_binder{number}").touch()
    return made


def served(nodes: Nodes, kubelet_dir: str, example: str) -> Serve:
    """Return the plugin with an example as its file, in directories of the test's own."""
    directory = nodes.directory.parent
    file = directory / "config.yaml"
    file.write_text(EXAMPLES[example])
    # Nothing is mounted on a directory with files in it, and its files count as binder devices.
    text = file.read_text().replace("max: 4096}", f"max: 4096, directory: {nodes.directory}}}")
    file.write_text(text)
    return Serve(nodes, kubelet_dir, "--config", str(file), environment={"AOSP_PLUGIN_CDI_DIR": str(directory / "cdi")})


async def first_container(kubelet: Kubelet, resource: str) -> ContainerAllocation:
    admitted = await kubelet.admit(Pod("phone", [Container("main", {resource: 1})]))
    return admitted.containers["main"]


def test_every_example_is_tried() -> None:
    """One that is added to the README has to be added here."""
    assert EXAMPLES.keys() == EXPECTED.keys()


@pytest.mark.parametrize("example", EXPECTED)
async def test_the_example_advertises_what_it_says(nodes: Nodes, kubelet_dir: str, example: str) -> None:
    """Each file by itself is a whole configuration."""
    async with Kubelet(kubelet_dir) as kubelet, served(nodes, kubelet_dir, example):
        expected = EXPECTED[example]
        await kubelet.wait_for(lambda k: {name: counts(k, name) for name in expected} == expected)


def counts(kubelet: Kubelet, resource: str) -> tuple[int, int] | None:
    """Return how many devices are healthy, and how many there are; None before the first list."""
    view = kubelet.resource(resource)
    return (view.allocatable, view.capacity) if view.connected else None


@pytest.mark.parametrize(
    ("example", "nodes_of_first"),
    [
        ("One device, one phone", ["aosp_binder0", "aosp_binder1", "aosp_binder2"]),
        ("One device, one phone 2", ["aosp_binder1", "aosp_binder121", "aosp_binder241"]),
        ("One device, one phone 3", ["phone1/binder", "phone1/hwbinder", "phone1/vndbinder"]),
    ],
)
async def test_a_phone_has_android_s_three_paths(
    nodes: Nodes, kubelet_dir: str, example: str, nodes_of_first: list[str]
) -> None:
    """``aosp.io/phone: 1`` is three nodes, in this order."""
    async with Kubelet(kubelet_dir) as kubelet, served(nodes, kubelet_dir, example):
        await kubelet.wait_for(lambda k: k.resource(PHONE).allocatable > 0)
        container = await first_container(kubelet, PHONE)
        at = {mount.container_path: mount.host_path for mount in container.mounts}
        assert at == {path: f"{nodes.directory}/{name}" for path, name in zip(PATHS, nodes_of_first, strict=True)}


async def test_the_example_of_cdi_names_its_devices(nodes: Nodes, kubelet_dir: str) -> None:
    """The container is told a name, and the file under that name is what it stands for."""
    async with Kubelet(kubelet_dir) as kubelet, served(nodes, kubelet_dir, "CDI"):
        await kubelet.wait_for(lambda k: k.resource(PHONE).allocatable > 0)
        container = await first_container(kubelet, PHONE)
        assert (container.cdi_devices, container.devices, container.mounts) == (("aosp.io/phone=aosp_binder0",), (), ())
        spec = json.loads((nodes.directory.parent / "cdi/aosp.io_phone.json").read_bytes())
        assert len(spec["devices"]) == 120


async def test_the_example_of_numa_keeps_a_container_on_one_node(nodes: Nodes, kubelet_dir: str) -> None:
    """80 of its numbers are left on NUMA node 0, so that 150 come from NUMA node 1."""
    async with Kubelet(kubelet_dir) as kubelet, served(nodes, kubelet_dir, "NUMA"):
        await kubelet.wait_for(lambda k: k.resource(BINDER).allocatable == COUNT)
        for count, first in ((100, 0), (150, 180)):
            admitted = await kubelet.admit(Pod(f"with-{count}", [Container("main", {BINDER: count})]))
            ids = admitted.containers["main"].device_ids[BINDER]
            assert set(ids) == {f"aosp_binder{number}" for number in range(first, first + count)}


async def test_the_status_table_is_what_a_node_in_that_state_prints(kubelet_dir: str, tmp_path: Path) -> None:
    """Ten phones, of which one is incomplete and three run."""
    nodes = Nodes(tmp_path / "small")
    nodes.make(*(number for number in range(30) if number != 16))
    file = tmp_path / "phones.yaml"
    file.write_text(EXAMPLES["One device, one phone"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pods = f"{kubelet_dir}/pods.sock"
    flags = ("--config", str(file), "--listen", address)
    environment = {"AOSP_PLUGIN_POD_RESOURCES_SOCKET": pods}
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, pods),
        Serve(nodes, kubelet_dir, *flags, environment=environment) as serve,
    ):
        await listed(kubelet, 9, PHONE)
        await serve.logged("registered")
        for number in range(3):
            await kubelet.admit(Pod(f"phone-{number}", [Container("android", {PHONE: 1})]))
        command = [sys.executable, "-m", "aosp_plugin", "status", "--url", f"http://{address}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    assert [line.rstrip() for line in out.decode().splitlines()[2:]] == status()
