"""A whole DRA driver with a stand-in kubelet and a stand-in API server, over real sockets and files."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver.protocol import object_path
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Timings
from kubelet_standin import ClaimsError, DraPod, KubeletVersion
from tests.claims import DRIVER, DirectoryBackend
from tests.dra_drivers import HASTY
from tests.dra_node import CLAIMS, DraNode
from tests.support import PATIENCE, unready, until


@pytest.fixture
def backend(short_directory: Path) -> Iterator[DirectoryBackend]:
    backend = DirectoryBackend(short_directory / "phones", count=4)
    yield backend
    backend.resume.set()  # a test that fails while the backend hangs ends at once


@pytest.fixture
async def driver(node: DraNode, backend: DirectoryBackend) -> AsyncIterator[DraDriver]:
    async with node.running(backend) as driver:
        yield driver


@pytest.mark.parametrize("kubelet_version", KubeletVersion)
async def test_a_pod_gets_its_device_with_each_version_of_the_kubelet(
    node: DraNode, driver: DraDriver, backend: DirectoryBackend, kubelet_version: KubeletVersion
) -> None:
    """It is told when the device turns unhealthy, and the device gets a taint."""
    assert node.devices == ["phone0", "phone1", "phone2", "phone3"]
    claim = node.create_claim("a", ["phone2"])
    pod = DraPod("game", (claim,))
    await node.kubelet.prepare(pod)
    assert node.kubelet.cdi_devices(pod) == (f"{DRIVER}/claim={claim.uid}-phone2",)
    assert backend.mounted == {"phone2"}
    assert driver.driver.claims == 1
    backend.reasons["phone2"] = "missing"
    driver.rescan()
    (device,) = node.kubelet.devices(pod)
    if kubelet_version.watches_health:
        await node.kubelet.wait_for(lambda k: k.health(DRIVER, device.pool, device.device).health == "Unhealthy")
    await node.server.wait_for(lambda _: node.has_taints)
    await node.kubelet.unprepare(pod)
    assert (backend.mounted, node.specs) == (set(), [])


@pytest.mark.parametrize("kubelet_version", KubeletVersion)
@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_claim_is_kept_if_the_kubelet_restarts_while_it_is_prepared(
    node: DraNode, driver: DraDriver, backend: DirectoryBackend, *, is_prepared: bool
) -> None:
    """No answer reaches the first kubelet. The next one asks before or after the end of the preparation."""
    pod = DraPod("game", (node.create_claim("a", ["phone2"]),))
    backend.hang = {"prepare"}
    asking = asyncio.create_task(node.kubelet.prepare(pod))
    await asyncio.to_thread(backend.hanging.wait, PATIENCE)
    await node.kubelet.restart()
    with pytest.raises(ClaimsError, match="NodePrepareResources: the kubelet has stopped"):
        await asking
    await node.ready(driver)
    backend.hang = set()
    if is_prepared:
        backend.resume.set()
        await until(lambda: node.specs != [])
    reads = node.server.count("get", "resourceclaims")
    asking = asyncio.create_task(node.kubelet.prepare(pod))
    await node.server.wait_for(lambda server: server.count("get", "resourceclaims") > reads)  # the driver was asked
    backend.resume.set()
    await asking
    assert node.kubelet.cdi_devices(pod) == (f"{DRIVER}/claim={pod.claims[0].uid}-phone2",)
    assert backend.mounted == {"phone2"}
    assert backend.calls == ["unprepare phone2", "prepare phone2", "prepare phone2"], "what an earlier claim left first"
    assert driver.driver.claims == len(node.specs) == 1


async def test_devices_are_published_when_the_kubelet_has_registered_the_driver(
    node: DraNode, backend: DirectoryBackend
) -> None:
    """A pod that is bound to the node before would wait for a driver that the kubelet does not know."""
    node.kubelet.faults.miss_sockets = True
    driver = node.driver(backend, runtime=Runtime(timings=HASTY))
    async with node.begun(driver):
        await until(lambda: "it has not registered the driver's socket" in unready(driver))
        assert driver.inventory.snapshot.devices
        assert not node.slices
        node.kubelet.faults.miss_sockets = False
        await node.server.wait_for(lambda _: node.devices)
        assert driver.registered


async def test_devices_are_kept_current_while_the_kubelet_is_away(node: DraNode, backend: DirectoryBackend) -> None:
    """It deletes them when it starts, and they are published again."""
    kubelet_socket = f"{node.directory}/kubelet.sock"
    looked = asyncio.Event()

    def accept() -> asyncio.Protocol:
        looked.set()
        return asyncio.Protocol()

    kubelet = await asyncio.get_running_loop().create_unix_server(accept, kubelet_socket)
    runtime = Runtime(timings=Timings(recheck=0.05))
    async with node.running(backend, kubelet_socket=kubelet_socket, runtime=runtime) as driver:
        published = node.devices
        looked.clear()
        await looked.wait()
        await node.kubelet.stop()
        kubelet.close()
        await until(lambda: not driver.registered)
        backend.reasons["phone1"] = "missing"
        driver.rescan()
        await node.server.wait_for(lambda _: node.has_taints)
        assert node.devices == published
        await node.kubelet.start()
        await node.ready(driver)
        await until(lambda: node.devices == published)


async def test_a_claim_that_ended_without_the_kubelet_is_released(node: DraNode, backend: DirectoryBackend) -> None:
    """The kubelet may have lost its record of the claim, and all claims are asked for seldom otherwise."""
    timings = Timings(claim_gone=0.0, claim_round=0.05, claim_ask=3600.0)
    async with node.running(backend, runtime=Runtime(timings=timings)) as driver:
        claim = node.create_claim("a", ["phone2"])
        await node.kubelet.prepare(DraPod("game", (claim,)))
        await node.kubelet.stop()
        node.server.objects.delete(object_path(CLAIMS, claim.name))
        assert backend.mounted == {"phone2"}
        await node.kubelet.start()
        await node.ready(driver)
        await until(lambda: backend.mounted == set())


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


async def test_a_second_process_of_a_driver_is_registered_when_the_first_one_has_ended(
    node: DraNode, backend: DirectoryBackend
) -> None:
    """Two releases with the same resource; a kubelet would call the one that has registered last."""
    pod = DraPod("game", (node.create_claim("a", ["phone2"]),))
    waiting = node.driver(backend, runtime=Runtime(timings=Timings(recheck=0.05)))
    async with node.running(backend) as driver, node.begun(waiting):
        await until(lambda: "another process serves the driver" in unready(waiting))
        await node.kubelet.prepare(pod)
        assert (driver.driver.claims, waiting.driver.claims) == (1, 0)
        driver.stop()
        await node.ready(waiting)
        assert waiting.driver.claims == 1
        await node.kubelet.unprepare(pod)
        assert backend.mounted == set()
