"""Items: each alert of DRA and of the Node is fired by a process that is in its state."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.dra import driver_names
from kubelet_standin.apiserver import ApiServer, Refuse
from kubelet_standin.dra_kubelet import ClaimsError, DraClaim, DraKubelet, DraPod
from tests.e2e.deploy.faults import RESOURCE, Process, World, item

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DRIVER: Final = driver_names.driver_name(RESOURCE)
NODE: Final = "n1"
CLAIMS: Final = protocol.resource_claims("default")
FORBIDDEN: Final = Refuse(403, "Forbidden", "forbidden")
LONG: Final = 12
"""Minutes within which the alerts fire and resolve."""


class Driver:
    """A driver process with a kubelet and an API server."""

    def __init__(self, world: World, process: Process, server: ApiServer, kubelet: DraKubelet) -> None:
        self.world = world
        self.process = process
        self.server = server
        self.kubelet = kubelet

    async def has(self, condition: Callable[[Process], object], what: str) -> None:
        """Wait until the metrics of the process are so."""
        await self.world.until(lambda: condition(self.process), what)

    async def ready(self) -> None:
        """Wait until the driver is registered, and its slices are confirmed."""
        await self.has(lambda each: each.value("registered") == 1, "the driver is registered")
        await self.has(lambda each: each.value("slices_confirmed") == 1, "the slices are confirmed")

    def create_pod(self, device_id: str) -> DraPod:
        """Return a pod with an allocated claim."""
        place = {
            "request": "main",
            "driver": DRIVER,
            "pool": driver_names.pool_name(NODE, driver_names.block_of(device_id)),
            "device": driver_names.device_name(device_id),
        }
        claim = {
            "metadata": {"name": device_id.replace("_", "-")},
            "status": {"allocation": {"devices": {"results": [place]}}},
        }
        return DraPod(device_id, (DraClaim.from_object(self.server.objects.create(CLAIMS, claim)),))


@contextlib.asynccontextmanager
async def driving(world: World) -> AsyncIterator[Driver]:
    """Run a driver with two devices."""
    world.devices.add(0, 1)
    account = world.directory / "account"
    account.mkdir()
    async with ApiServer(tls=True) as server, DraKubelet(world.directory / "plugins_registry") as kubelet:
        server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        server.write_service_account(str(account))
        environment = {**server.environment, "NODE_NAME": NODE}
        with world.running(environment=environment, api="dra", service_account_dir=str(account)) as process:
            driver = Driver(world, process, server, kubelet)
            await driver.ready()
            await world.fires(within=LONG)
            yield driver


async def slices_deleted_without_right_to_create(world: World) -> None:
    """A kubelet has deleted the slices, and the driver must not create them: AospPluginSlicesMissing fires."""
    async with driving(world) as driver:
        refused = driver.server.faults.add(FORBIDDEN, verb="create")
        driver.server.objects.delete_collection(protocol.RESOURCE_SLICES)
        await driver.has(lambda each: each.value("slices_confirmed") == 0, "the driver notices")
        await world.fires("AospPluginSlicesMissing", within=5, ignoring="AospPluginApiRequestsFailing")
        refused.remove()
        await driver.ready()
        await world.fires(within=LONG)


async def api_server_refuses_everything(world: World) -> None:
    """The service account has no right any more: AospPluginApiRequestsFailing fires."""
    async with driving(world) as driver:
        refused = driver.server.faults.add(FORBIDDEN)
        driver.server.end_watches()
        await driver.has(lambda each: each.value("api_requests_total", code="403") > 0, "a refusal")
        await world.fires("AospPluginApiRequestsFailing", within=20)
        refused.remove()
        await driver.has(lambda each: each.value("slices_confirmed") == 1, "the slices are confirmed")
        await world.fires(within=20)


async def claim_cannot_be_read(world: World) -> None:
    """The driver must not get claims: AospPluginClaimPreparesFailing fires, and the pod waits."""
    async with driving(world) as driver:
        refused = driver.server.faults.add(FORBIDDEN, verb="get", resource="resourceclaims")
        pod = driver.create_pod("aosp_binder0")
        with contextlib.suppress(ClaimsError):
            await driver.kubelet.prepare(pod)
        assert driver.process.value("claim_prepares_total", result="failed") == 1
        await world.fires("AospPluginClaimPreparesFailing", within=2)
        refused.remove()
        await driver.kubelet.prepare(pod)
        await world.fires(within=LONG)


async def claim_cannot_be_released(world: World) -> None:
    """The CDI spec cannot be removed: AospPluginClaimUnpreparesFailing fires, and AospPluginClaimRepairsFailing."""
    async with driving(world) as driver:
        pod = driver.create_pod("aosp_binder0")
        await driver.kubelet.prepare(pod)
        (spec,) = (world.directory / "cdi").glob(f"{DRIVER}-claim_*.json")
        spec.unlink()
        (spec / "in-the-way").mkdir(parents=True)
        with contextlib.suppress(ClaimsError):
            await driver.kubelet.unprepare(pod)
        assert driver.process.value("claim_unprepares_total", result="failed") > 0
        await world.fires("AospPluginClaimUnpreparesFailing", "AospPluginClaimRepairsFailing", within=8)
        (spec / "in-the-way").rmdir()
        spec.rmdir()
        await driver.kubelet.unprepare(pod)
        await world.fires(within=20)


async def feature_file_without_directory(world: World) -> None:
    """The directory of the feature file is missing: AospPluginNodeTaskFailing fires, and the devices stay."""
    world.devices.add(0)
    directory = world.directory / "features.d"
    with world.running(feature_file=str(directory / "aosp-device-plugin")) as process:
        await world.registered(process, 1)
        await world.until(lambda: process.value("node_problem", task="feature_file") == 1, "the problem")
        await world.fires("AospPluginNodeTaskFailing", within=20)
        directory.mkdir()
        await world.until(lambda: process.value("node_problem", task="feature_file") == 0, "the end of the problem")
        await world.fires(within=LONG)


ITEMS = [
    item(scenario)
    for scenario in (
        slices_deleted_without_right_to_create,
        api_server_refuses_everything,
        claim_cannot_be_read,
        claim_cannot_be_released,
        feature_file_without_directory,
    )
]
