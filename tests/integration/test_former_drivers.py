"""A resource gets another name while claims are prepared: their phones stay, and their pods can end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api, ProvisionedBy
from aosp_plugin.daemon import held_devices
from aosp_plugin.daemon.assembly import create_backend, create_former_driver
from aosp_plugin.daemon.former_names import FormerNames
from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.dra.record_store import claims_on_host
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.worker import Worker
from kubelet_standin import ClaimsError, DraPod
from kubelet_standin.apiserver import ApiServer
from tests.backends import Served
from tests.claims import DRIVER
from tests.dra_node import DraNode
from tests.support import until
from tests.tmpfs_binderfs import Mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")

LISTEN = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
input()
"""
FORMER, PRESENT = "aosp.io/phone", "example.com/tablet"


@pytest.fixture
def phones(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    with contextlib.closing(Mounts(short_directory / "phones", monkeypatch)) as mounts:
        yield mounts


@pytest.fixture
async def node(short_directory: Path) -> AsyncIterator[DraNode]:
    async with ApiServer() as server:
        node = DraNode(short_directory, server)
        async with node.kubelet:
            yield node


def backend(directory: Path, resource: Resource) -> ClaimsBackend:
    return ClaimsBackend(Host(), resource, cdi_dir=str(directory / "cdi"))


def resource(phones: Mounts, name: str) -> Resource:
    ordered = Phones(count=3, directory=str(phones.path))
    return Resource.of(api=Api.DRA, phones=ordered, shared_devices=(), resource_name=name)


@pytest.fixture
async def pod(node: DraNode, phones: Mounts) -> DraPod:
    """Return a pod that has phone1 by the former driver, which runs no longer."""
    pod = DraPod("game", (node.create_claim("a", ["phone1"]),))
    async with node.running(backend(node.directory, resource(phones, FORMER))):
        await node.kubelet.prepare(pod)
    return pod


@contextlib.asynccontextmanager
async def serving(
    config: Config,
    present: Callable[[], FoundDevices],
    create: Callable[[Resource], DraDriver],
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve former names again and again, as the watch of allocations does, and yield the task."""
    with contextlib.closing(Worker("former names")) as worker:
        former = FormerNames(config, lambda _: present(), create, no_server, Conditions(), worker, wait=0.0, linger=1.0)

        async def serve() -> None:
            while True:
                claims = await asyncio.to_thread(claims_on_host, config.driver_directory(""))
                await former.serve((), claims)
                await asyncio.sleep(0.01)

        try:
            async with background_task(serve()) as task:
                yield task
        finally:
            await former.close()


def no_server(_resource: str | Resource) -> NoReturn:
    raise AssertionError


@contextlib.asynccontextmanager
async def without_driver(node: DraNode, phones: Mounts, **keys: Any) -> AsyncIterator[Served]:
    """Run what serves former drivers beside a device plugin."""
    plugin = msgspec.structs.replace(resource(phones, FORMER), api=Api.DEVICE_PLUGIN, **keys)
    config = Config(resources=(plugin,), kubelet_dir=str(node.directory / "device-plugins"))
    present = Served(create_backend(Host(), plugin, cdi_dir=str(node.directory / "cdi")))
    present.scan()

    def create(former: Resource) -> DraDriver:
        return node.driver(backend(node.directory, former), withheld="a former name")

    async with serving(config, lambda: present.found, create):
        yield present


@contextlib.asynccontextmanager
async def renamed(node: DraNode, phones: Mounts, directory: Path | None = None) -> AsyncIterator[DraDriver]:
    """Run the plugin with the present name, and perhaps with its phones in another directory."""
    present_resource = resource(phones, PRESENT)
    if directory is not None:
        present_resource = msgspec.structs.replace(present_resource, phones=Phones(count=3, directory=str(directory)))
    config = Config(resources=(present_resource,), kubelet_dir=str(node.directory / "device-plugins"))
    present = backend(node.directory, config.resources[0])

    def create(former: Resource) -> DraDriver:
        return node.driver(backend(node.directory, former), withheld="a former name")

    async def tell() -> None:
        """Tell the backend which devices claims of other drivers have, as the daemon does."""
        while True:
            claims = claims_on_host(config.driver_directory("")).prepared
            claimed = held_devices.used_by_claims(present, present._last, claims)
            if claimed != present.input.claimed:
                present.input = present.input._replace(claimed=claimed)
                driver.rescan()
            await asyncio.sleep(0.05)

    serving_former = serving(config, lambda: present._last, create)
    async with serving_former, node.running(present) as driver, background_task(tell()):
        yield driver


def reason(driver: DraDriver, phone: str) -> str:
    return driver.inventory.snapshot.devices[phone].detail


async def test_a_phone_of_a_former_driver_stays_and_its_pod_can_end(node: DraNode, phones: Mounts, pod: DraPod) -> None:
    before = os.stat(phones.path / "phone1").st_dev
    async with renamed(node, phones) as driver:
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        await until(
            lambda: f"claim default/claim-a (UID {pod.claims[0].uid}) of {DRIVER} has it" in reason(driver, "phone1")
        )
        assert not reason(driver, "phone0")
        assert os.stat(phones.path / "phone1").st_dev == before
        assert node.specs == [f"{DRIVER}-claim_{pod.claims[0].uid}.json"]
        await node.kubelet.unprepare(pod)
        assert phones.mounted() == {}
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected(DRIVER))
        await until(lambda: not reason(driver, "phone1"))
        assert not node.specs


@pytest.mark.parametrize("keys", [{}, {"replicas": 2}, {"provisioned_by": ProvisionedBy.COMMAND}])
async def test_a_pod_can_end_when_its_resource_has_got_the_device_plugin_api(
    node: DraNode, phones: Mounts, pod: DraPod, keys: Any
) -> None:
    before = os.stat(phones.path / "phone1").st_dev
    async with without_driver(node, phones, **keys) as present:
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        if not keys:
            present.update_host()
        assert os.stat(phones.path / "phone1").st_dev == before
        await node.kubelet.unprepare(pod)
        assert phones.mounted() == ({} if keys else {"phone0": 1, "phone2": 1})
        await node.kubelet.wait_for(lambda kubelet: not kubelet.connected(DRIVER))


async def test_unseen_claims_of_a_former_driver_are_logged(
    node: DraNode, phones: Mounts, pod: DraPod, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest of a device plugin mounts no directory of drivers."""
    plugin = msgspec.structs.replace(resource(phones, FORMER), api=Api.DEVICE_PLUGIN)
    config = Config(resources=(plugin,), kubelet_dir=str(node.directory / "hidden" / "device-plugins"))
    present = Served(create_backend(Host(), plugin, cdi_dir=str(node.directory / "cdi")))
    present.scan()
    present.update_host()
    present.scan()
    async with serving(config, lambda: present.found, no_server):
        await until(lambda: "pods with claims cannot end, no driver is served" in caplog.messages)
    (record,) = [each for each in caplog.records if each.message.startswith("pods with claims")]
    assert f"{node.directory}/hidden/plugins does not exist: mount it" in record.__dict__["error"]
    async with without_driver(node, phones):
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        await node.kubelet.unprepare(pod)


async def test_a_damaged_record_of_a_former_driver_is_restored(node: DraNode, phones: Mounts, pod: DraPod) -> None:
    before = os.stat(phones.path / "phone1").st_dev
    (record,) = node.directory.glob(f"plugins/{DRIVER}/claim_*.json")
    content = record.read_bytes()
    record.write_text("")
    async with renamed(node, phones) as driver:
        await until(lambda: record.read_bytes() == content)
        await until(lambda: "has it" in reason(driver, "phone1"))
        assert os.stat(phones.path / "phone1").st_dev == before
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        await node.kubelet.unprepare(pod)


async def test_a_former_drivers_pod_ends_when_the_phones_have_another_directory(
    node: DraNode, phones: Mounts, pod: DraPod
) -> None:
    directory = node.directory / "tablets"
    directory.mkdir()
    (spec,) = node.specs
    (node.directory / "cdi" / spec).unlink()
    before = os.stat(phones.path / "phone1").st_dev
    async with renamed(node, phones, directory):
        await until(lambda: node.specs == [spec])
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        assert os.stat(phones.path / "phone1").st_dev == before
        await node.kubelet.unprepare(pod)
        assert phones.mounted() == {}


def remove_records(config: Config) -> None:
    for record in Path(config.driver_directory("")).glob("*/claim_*.json"):
        record.unlink()


async def test_a_former_driver_that_cannot_be_created_is_retried(
    node: DraNode, phones: Mounts, pod: DraPod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = Config(resources=(resource(phones, PRESENT),), kubelet_dir=str(node.directory / "device-plugins"))
    present = Served(backend(node.directory, config.resources[0]))
    present.scan()
    with contextlib.closing(FileEvents()) as files:
        create = partial(create_former_driver, config, Runtime(files=files))  # the process is in no pod
        async with serving(config, lambda: present.found, create) as run:
            await until(lambda: "former drivers cannot be served, retrying" in caplog.messages)
            assert not run.done()
            remove_records(config)
            await until(lambda: "former drivers can be served again" in caplog.messages)
    assert phones.mounted() == {"phone1": 1}, pod


async def test_no_further_claim_is_prepared_by_a_former_name(node: DraNode, phones: Mounts, pod: DraPod) -> None:
    async with renamed(node, phones):
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        with pytest.raises(ClaimsError, match="a former name"):
            await node.kubelet.prepare(DraPod("other", (node.create_claim("b", ["phone0"]),)))
        drivers = {each["spec"]["driver"] for each in node.slices if each["spec"].get("devices")}
        assert "tablet.example.com" in drivers
        await node.kubelet.unprepare(pod)


async def test_the_container_of_a_former_drivers_pod_starts_again(node: DraNode, phones: Mounts, pod: DraPod) -> None:
    """Somebody has removed its spec meanwhile."""
    (spec,) = node.specs
    (node.directory / "cdi" / spec).unlink()
    async with renamed(node, phones):
        await until(lambda: node.specs == [spec])
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        await node.kubelet.unprepare(pod)


async def test_a_former_name_that_another_process_serves_is_left_to_it(
    node: DraNode, phones: Mounts, pod: DraPod
) -> None:
    """Two releases have the same phones: neither unmounts those of the other one."""
    path = str(node.directory / "plugins_registry" / f"{DRIVER}-1-2.sock")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTEN, path, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    async with renamed(node, phones) as driver:
        await until(lambda: "has it" in reason(driver, "phone1"))
        assert not node.kubelet.connected(DRIVER)
        assert phones.mounted() == {"phone1": 1}
        await process.communicate(b"\n")
        await node.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
        await node.kubelet.unprepare(pod)
