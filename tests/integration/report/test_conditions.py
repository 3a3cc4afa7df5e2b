"""What probes and page say of each part of a server that something is wrong with."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Timings
from kubelet_standin import Kubelet
from kubelet_standin.apiserver import Hang, Refuse
from tests.backends import binder_backend
from tests.claims import DRIVER, DirectoryBackend, reference
from tests.dra_node import DraNode
from tests.reports import problems_of
from tests.support import IN_LIFE, PATIENCE, DeviceDirectory, listed, make_plugin, run, unready, until

HANGS_SOON = IN_LIFE._replace(hang=0.05)


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    device_directory.add(0)
    return device_directory


@pytest.fixture
async def registered(devices: DeviceDirectory, kubelet: Kubelet) -> AsyncIterator[DevicePlugin]:
    """Yield a plugin that a kubelet has registered."""
    async with run(make_plugin(devices, kubelet.directory, timings=HANGS_SOON)) as plugin:
        await listed(kubelet, 1)
        await until(lambda: plugin.registered)
        yield plugin


async def test_a_plugin_without_a_kubelet_is_not_registered(kubelet_dir: str, devices: DeviceDirectory) -> None:
    async with run(make_plugin(devices, kubelet_dir)) as plugin:
        await until(lambda: "there is no" in unready(plugin))
        assert problems_of(plugin) == [("error", "not-registered")]


async def test_a_scan_that_hangs_is_shown_beside_what_the_kubelet_lacks(
    registered: DevicePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round of questions with fewer devices is not shown, two are."""
    released = threading.Event()
    monkeypatch.setattr(registered._scan_loop.backend, "scan", lambda: released.wait(PATIENCE) and FoundDevices())
    registered.rescan()
    await until(lambda: "device scan has been hanging for" in unready(registered))
    registered.confirmation.compare(0, 1, 0.0)
    assert problems_of(registered) == [("error", "outdated")]
    registered.confirmation.compare(0, 1, 0.0)
    assert {*problems_of(registered)} == {("error", "kubelet-disagrees"), ("error", "outdated")}
    released.set()


async def test_a_host_that_cannot_be_updated_does_not_make_the_device_list_outdated(
    kubelet_dir: str, devices: DeviceDirectory
) -> None:
    cdi_dir = devices.directory.parent / "cdi"
    cdi_dir.touch()
    backend = binder_backend(devices.directory, cdi_dir=cdi_dir, device_list=(DeviceList.CDI_CRI,))
    plugin = DevicePlugin(backend.backend, kubelet_dir=kubelet_dir, runtime=Runtime(timings=IN_LIFE))
    async with Kubelet(kubelet_dir), run(plugin):
        await until(lambda: plugin.registered and "host update failed" in unready(plugin))
        assert ("error", "host-not-updated") in problems_of(plugin)
        assert "outdated" not in dict(problems_of(plugin)).values()


# -- DRA drivers


@pytest.fixture
def backend(short_directory: Path) -> DirectoryBackend:
    return DirectoryBackend(short_directory / "phones", count=4)


async def test_an_api_server_that_does_not_answer_leaves_a_driver_ready(
    node: DraNode, backend: DirectoryBackend
) -> None:
    """Whatever the delay: the slices that it has confirmed stay as they are."""
    async with node.running(backend) as driver:
        hang = node.server.faults.add(Hang())
        driver.rescan()
        await node.server.wait_for(lambda _: hang.hits)
        assert (unready(driver), problems_of(driver)) == ("", [])
        node.server.faults.clear()


async def test_requests_that_fail_while_all_slices_are_confirmed_leave_a_driver_ready(
    node: DraNode, backend: DirectoryBackend
) -> None:
    async with node.running(backend) as driver:
        node.server.faults.add(Refuse(503), verb="list")
        driver.rescan()
        await until(lambda: bool(problems_of(driver)))
        assert (unready(driver), problems_of(driver)) == ("", [("warning", "api-server-failing")])
        node.server.faults.clear()
        await until(lambda: not problems_of(driver))


async def test_slices_are_not_confirmed_after_a_start_of_the_kubelet_until_they_are_compared(
    node: DraNode, backend: DirectoryBackend
) -> None:
    async with node.running(backend) as driver:
        node.server.faults.add(Refuse(503), verb="list")
        await node.kubelet.stop()
        await node.kubelet.start()
        await until(lambda: ("error", "slices-missing") in problems_of(driver))
        node.server.faults.clear()
        await node.ready(driver)


async def test_claims_that_cannot_be_recorded_are_no_outdated_device_list(
    node: DraNode, backend: DirectoryBackend
) -> None:
    records = node.directory / "plugins" / DRIVER
    records.parent.mkdir(exist_ok=True)
    records.touch()
    driver = node.driver(backend)
    async with node.begun(driver):
        await until(lambda: "claims cannot be repaired" in unready(driver) and driver._publisher.confirmed)
        await until(lambda: problems_of(driver) == [("error", "claims-failing")])


async def test_a_claim_that_waits_is_a_warning_until_it_ends(node: DraNode, backend: DirectoryBackend) -> None:
    async with node.running(backend, runtime=Runtime(timings=Timings(claim_slow=0.0))) as driver:
        node.server.faults.add(Hang(), resource="resourceclaims")
        claim = node.create_claim("a", ["phone2"])
        preparing = asyncio.create_task(driver._claims.prepare(reference(claim.uid), PATIENCE))
        await until(lambda: bool(problems_of(driver)))
        assert (unready(driver), problems_of(driver)) == ("", [("warning", "claims-not-repaired")])
        preparing.cancel()
        await until(lambda: not problems_of(driver))
        node.server.faults.clear()
