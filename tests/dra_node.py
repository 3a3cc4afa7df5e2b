"""A node for the tests of whole DRA drivers: stand-ins for API server and kubelet, and the driver's directories."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.dra.driver import DraDirectories, DraDriver
from aosp_plugin.framework.dra.slices import driver_name
from kubelet_standin import DraClaim, DraKubelet, KubeletVersion
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.apiserver.node_api import NodeApi
from tests.claims import NODE, claim_object
from tests.dra_drivers import FAST_KUBELET
from tests.static_credentials import StaticCredentials
from tests.support import until

CLAIMS = protocol.resource_claims("default")


class DraNode:
    """One node with its kubelet, which deletes the node's ResourceSlices when it starts."""

    def __init__(self, directory: Path, server: ApiServer, version: KubeletVersion = KubeletVersion.V1_37) -> None:
        self.directory = directory
        self.server = server
        server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
        self.kubelet = DraKubelet(
            directory / "plugins_registry", version=version, timings=FAST_KUBELET, wipe=NodeApi(server, NODE).wipe
        )

    @property
    def slices(self) -> Sequence[dict[str, Any]]:
        """The node's ResourceSlices."""
        return self.server.objects.list(protocol.RESOURCE_SLICES)

    @property
    def devices(self) -> list[str]:
        """The names of all published devices."""
        return [device["name"] for each in self.slices for device in each["spec"].get("devices", ())]

    @property
    def has_taints(self) -> bool:
        """Whether a published device has a taint."""
        return any(device.get("taints") for each in self.slices for device in each["spec"].get("devices", ()))

    @property
    def specs(self) -> list[str]:
        """The names of the CDI specs."""
        return sorted(path.name for path in self.directory.joinpath("cdi").glob("*.json"))

    def create_claim(self, name: str, devices: Sequence[str], *config: Any) -> DraClaim:
        """Create an allocated ResourceClaim with a request ``main`` for these device IDs."""
        claim = claim_object(name, {"main": devices}, *config)
        return DraClaim.from_object(self.server.objects.create(CLAIMS, claim))

    def driver(self, backend: Backend[Any], **arguments: Any) -> DraDriver:
        """Return a driver of this node that does not run yet."""
        state = f"plugins/{driver_name(backend.resource_name)}"
        directories = DraDirectories(*(str(self.directory / name) for name in ("plugins_registry", state, "cdi")))
        credentials = StaticCredentials(self.server.url)
        return DraDriver(backend, node_name=NODE, directories=directories, credentials=credentials, **arguments)

    @contextlib.asynccontextmanager
    async def running(self, backend: Backend[Any], **arguments: Any) -> AsyncIterator[DraDriver]:
        """Run a driver inside the context, from the time when it is ready."""
        driver = self.driver(backend, **arguments)
        async with self.begun(driver):
            await self.ready(driver)
            yield driver

    @contextlib.asynccontextmanager
    async def begun(self, driver: DraDriver) -> AsyncIterator[None]:
        """Run a driver inside the context, which may not become ready."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(driver.run())
            try:
                yield
            finally:
                driver.stop()

    async def ready(self, driver: DraDriver) -> None:
        """Wait until the kubelet has registered the driver, and the API server has its slices."""
        await self.kubelet.wait_for(lambda kubelet: kubelet.connected(driver.driver_name))
        await until(lambda: driver.ready)
