"""The configuration changes while claims are prepared: their devices stay, and their pods end as soon as it is back."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon import held_devices
from aosp_plugin.daemon.assembly import create_backend
from aosp_plugin.daemon.former_names import FormerNames
from aosp_plugin.framework.conditions import CLAIMS_UNSERVED, Conditions
from aosp_plugin.framework.dra.claim_records import claims_on_host
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import background_task
from aosp_plugin.framework.worker import Worker
from kubelet_standin import ClaimsError, DraPod
from tests.backends import Served
from tests.claims import DRIVER
from tests.dra_node import DraNode
from tests.support import LISTEN, other_process, until
from tests.tmpfs_binderfs import Mounts

FORMER, PRESENT = "aosp.io/phone", "example.com/tablet"


def resource(directory: Path, name: str, api: Api = Api.DRA) -> Resource:
    ordered = Phones(count=3, directory=str(directory))
    return Resource.of(api=api, phones=ordered, shared_devices=(), resource_name=name)


def backend(node: DraNode, directory: Path, name: str = FORMER) -> ClaimsBackend:
    return ClaimsBackend(Host(), resource(directory, name), cdi_dir=str(node.directory / "cdi"))


def config(node: DraNode, served: Resource, kubelet: str = "") -> Config:
    return Config(resources=(served,), kubelet_dir=str(node.directory / kubelet / "device-plugins"))


@pytest.fixture
async def pod(node: DraNode, directory: Mounts) -> DraPod:
    """Return a pod that has phone1 by the former driver, which runs no longer."""
    pod = DraPod("game", (node.create_claim("a", ["phone1"]),))
    async with node.running(backend(node, directory.path)):
        await node.kubelet.prepare(pod)
    return pod


@contextlib.asynccontextmanager
async def following(config: Config, found: Callable[[], FoundDevices]) -> AsyncIterator[Callable[[], list[str]]]:
    """Look for former drivers again and again, as the watch of allocations does; yield what returns the reports."""
    conditions = Conditions()
    with contextlib.closing(Worker("former names")) as worker:
        former = FormerNames(config, lambda _: found(), Runtime(), conditions, worker)

        async def follow() -> None:
            while True:
                await former.follow((), await asyncio.to_thread(claims_on_host, config.driver_directory("")))
                await asyncio.sleep(0.01)

        async with background_task(follow()):
            yield lambda: [each.detail for each in conditions.of("") if each.kind is CLAIMS_UNSERVED]


@contextlib.asynccontextmanager
async def renamed(node: DraNode, directory: Mounts) -> AsyncIterator[tuple[DraDriver, Callable[[], list[str]]]]:
    """Run the driver of the present name; yield it, and what returns what is reported of former ones."""
    present = backend(node, directory.path, PRESENT)
    served = config(node, resource(directory.path, PRESENT))

    async def tell() -> None:
        """Tell the backend which devices claims of other drivers have, as the daemon does."""
        while True:
            claims = claims_on_host(served.driver_directory("")).prepared
            claimed = held_devices.used_by_claims(present, present._last, claims)
            if claimed != present.input.claimed:
                present.input = present.input._replace(claimed=claimed)
                driver.rescan()
            await asyncio.sleep(0.05)

    reporting = following(served, lambda: present._last)
    async with reporting as reported, node.running(present) as driver, background_task(tell()):
        yield driver, reported


def unserved(claims: int) -> list[str]:
    remedy = "configure its resource again until the pods with these claims have ended"
    return [f"no process on this node serves {DRIVER}, which has prepared {claims} claims: {remedy}"]


def reason(driver: DraDriver, phone: str) -> str:
    return driver.inventory.snapshot.devices[phone].detail


async def test_a_phone_of_a_former_driver_stays_until_its_pod_ends_by_the_former_name(
    node: DraNode, directory: Mounts, pod: DraPod
) -> None:
    """If another process serves the former name, that is left to it: two releases have the same phones."""
    before, specs = os.stat(directory.path / "phone1").st_dev, node.specs
    async with renamed(node, directory) as (driver, reported):
        with other_process(LISTEN, str(node.directory / "plugins_registry" / f"{DRIVER}-1-2.sock")):
            await until(lambda: pod.claims[0].uid in reason(driver, "phone1"))
            assert not reported()
        await until(lambda: reported() == unserved(1))
        await until(
            lambda: f"claim default/claim-a (UID {pod.claims[0].uid}) of {DRIVER} has it" in reason(driver, "phone1")
        )
        assert not reason(driver, "phone0")
        with pytest.raises(ClaimsError, match="not registered"):
            await node.kubelet.unprepare(pod)
        assert os.stat(directory.path / "phone1").st_dev == before
        assert node.specs == specs
    async with node.running(backend(node, directory.path)):
        await node.kubelet.unprepare(pod)
    async with renamed(node, directory) as (driver, reported):
        await until(lambda: not reported() and not reason(driver, "phone1"))
    assert not node.specs
    assert directory.mounted() == {}


async def test_claims_of_a_resource_that_has_got_the_device_plugin_api_are_reported(
    node: DraNode, directory: Mounts, pod: DraPod
) -> None:
    """Also if their record is damaged, and where records are not mounted, as by the manifest of a device plugin."""
    before = os.stat(directory.path / "phone1").st_dev
    plugin = resource(directory.path, FORMER, Api.DEVICE_PLUGIN)
    present = Served(create_backend(Host(), plugin, cdi_dir=str(node.directory / "cdi")))
    present.settle()
    (record,) = node.directory.glob(f"plugins/{DRIVER}/claim_*.json")
    content = record.read_bytes()
    for kubelet, text in (("", content), ("", b""), ("hidden", content)):
        record.write_bytes(text)
        async with following(config(node, plugin, kubelet), lambda: present.found) as reported:
            await until(lambda: reported() == unserved(1))
    assert os.stat(directory.path / "phone1").st_dev == before
    async with node.running(backend(node, directory.path)):
        await node.kubelet.unprepare(pod)
