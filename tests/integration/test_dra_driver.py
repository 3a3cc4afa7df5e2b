"""A whole DRA driver with a stand-in kubelet and a stand-in API server, over real sockets and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.dra.driver import TIMINGS, DraDriver
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.dra_claims import ClaimsError
from kubelet_standin.dra_kubelet import DraPod, DraVersion
from tests.claims import DRIVER, DirectoryBackend
from tests.dra_node import DraNode
from tests.support import until


@pytest.fixture
def backend(short_directory: Path) -> DirectoryBackend:
    return DirectoryBackend(short_directory / "phones", count=4)


@pytest.fixture
async def node(short_directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[DraNode]:
    version = getattr(request, "param", DraVersion.V1_37)
    async with ApiServer() as server:
        node = DraNode(short_directory, server, version)
        async with node.kubelet:
            yield node


@pytest.fixture
async def driver(node: DraNode, backend: DirectoryBackend) -> AsyncIterator[DraDriver]:
    async with node.running(backend) as driver:
        yield driver


@pytest.mark.parametrize("node", list(DraVersion), indirect=True)
async def test_a_pod_gets_its_device_with_each_version_of_the_kubelet(
    node: DraNode, driver: DraDriver, backend: DirectoryBackend
) -> None:
    assert node.devices == ["phone0", "phone1", "phone2", "phone3"]
    claim = node.create_claim("a", ["phone2"])
    pod = DraPod("game", (claim,))
    await node.kubelet.prepare(pod)
    assert node.kubelet.cdi_devices(pod) == (f"{DRIVER}/claim={claim.uid}-phone2",)
    assert backend.mounted == {"phone2"}
    assert driver.driver.claims == 1
    await node.kubelet.unprepare(pod)
    assert (backend.mounted, node.specs) == (set(), [])


async def test_devices_are_published_when_the_kubelet_has_registered_the_driver(
    node: DraNode, backend: DirectoryBackend
) -> None:
    """A pod that is bound to the node before would be refused, and tried again after a minute."""
    await node.kubelet.stop()
    driver = node.driver(backend, timings=TIMINGS._replace(publish_wait=600.0))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(driver.run())
        await until(lambda: bool(driver.inventory.snapshot.devices))
        assert not node.slices
        await node.kubelet.start()
        await node.server.wait_for(lambda _: node.devices)
        assert driver.registered
        driver.stop()


async def test_devices_are_published_without_a_kubelet_after_a_time(node: DraNode, backend: DirectoryBackend) -> None:
    await node.kubelet.stop()
    driver = node.driver(backend, timings=TIMINGS._replace(publish_wait=0.05))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(driver.run())
        await node.server.wait_for(lambda _: node.devices)
        assert not driver.registered
        driver.stop()


async def test_a_device_that_turns_unhealthy_gets_a_taint_and_its_pod_is_informed(
    node: DraNode, driver: DraDriver, backend: DirectoryBackend
) -> None:
    pod = DraPod("game", (node.create_claim("a", ["phone1"]),))
    await node.kubelet.prepare(pod)
    backend.reasons["phone1"] = "missing"
    driver.rescan()
    device = node.kubelet.devices(pod)[0]
    await node.kubelet.wait_for(
        lambda kubelet: kubelet.health(DRIVER, device.pool, device.device).health == "Unhealthy"
    )
    await node.server.wait_for(
        lambda _: any(each.get("taints") for slice_ in node.slices for each in slice_["spec"]["devices"])
    )


async def test_while_devices_are_withheld_only_prepared_claims_are_prepared(
    node: DraNode, driver: DraDriver, backend: DirectoryBackend
) -> None:
    shared, other = node.create_claim("a", ["phone1"]), node.create_claim("b", ["phone2"])
    await node.kubelet.prepare(DraPod("first", (shared,)))
    driver.withhold("a device plugin serves them")
    with pytest.raises(ClaimsError, match="a device plugin serves them"):
        await node.kubelet.prepare(DraPod("late", (other,)))
    assert backend.mounted == {"phone1"}
    await node.kubelet.prepare(DraPod("second", (shared,)))
    driver.withhold("")
    await node.kubelet.prepare(DraPod("late", (other,)))
    assert backend.mounted == {"phone1", "phone2"}
