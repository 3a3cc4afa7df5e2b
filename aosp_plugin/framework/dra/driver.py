"""A DRA driver: one backend, kept current, published in ResourceSlices, and prepared for claims."""

from collections.abc import Coroutine
from functools import partial
from typing import NamedTuple

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import Credentials
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.dra import driver_names
from aosp_plugin.framework.dra.claim_records import get_claim
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.dra.kubelet_service import KubeletService
from aosp_plugin.framework.dra.publisher import SlicePublisher
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer
from aosp_plugin.framework.resource_server import DriverState, ResourceServer
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings

TIMINGS = DEFAULT._replace(quiet=0.1, longest_delay=0.25)
"""Each claim that is prepared or unprepared causes events, and scans between the preparations of many claims would take
longer than these do, in the same worker thread."""


class DraDirectories(NamedTuple):
    """Where a driver has its files; paths of this process."""

    registry: str
    """Where the kubelet looks for sockets of plugins: plugins_registry in its root directory."""
    state: str
    """For the lock that excludes another process of the driver."""
    cdi: str
    """CDI specs; the container runtime must read them."""


class DraDriver(ResourceServer):
    """The DRA driver of one resource. Create and run it in the same event loop; it runs once."""

    _registration: KubeletService

    def __init__(
        self,
        backend: Backend,
        *,
        node_name: str,
        directories: DraDirectories,
        credentials: Credentials,
        kubelet_socket: str = "",
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
        timings: Timings = TIMINGS,
        clock: Clock = CLOCK,
    ) -> None:
        """``credentials`` are for the API server, and closed at the end.

        ``kubelet_socket`` is that of the kubelet's podresources API, which shows whether the kubelet runs.

        Drivers of the same process share ``files``; the caller that creates ``files`` also closes it.
        """
        super().__init__(backend, files=files, observer=observer, timings=timings, clock=clock)
        self.driver_name = driver_names.driver_name(backend.resource_name)
        self.confirmation.unavailable("the devices are in ResourceSlices")
        self._api = ApiClient(credentials, observer=observer.api_request, user_agent=self.driver_name)
        self._claims = Claims(
            backend,
            self.driver_name,
            node_name,
            get_claim=partial(get_claim, self._api),
            worker=self._scanned.worker,
            inventory=self.inventory,
            state_directory=directories.state,
            cdi_directory=directories.cdi,
            observer=observer,
            timings=timings,
            clock=clock,
        )
        self._claim_files = self._scanned.subscribe()
        self._registration = KubeletService(
            self.driver_name,
            directories.registry,
            self._claims,
            files=self._kubelet_files,
            stop=self._stop,
            kubelet_socket=kubelet_socket,
            observer=observer,
            timings=timings,
            clock=clock,
        )
        self._publisher = SlicePublisher(
            self._api,
            self.driver_name,
            node_name,
            self.inventory,
            backend.attributes,
            self._stop,
            observer,
            timings=timings,
        )
        self._timings = timings

    @property
    def driver(self) -> DriverState:
        """What is published and prepared. May be read in any thread."""
        return DriverState(self.driver_name, *self._publisher.counts, len(self._claims.prepared))

    @property
    def notice(self) -> str:
        """Which claims cannot be repaired or released, although the driver is ready. May be read in any thread."""
        return self._claims.notice

    def details(self, *, ready: bool) -> str:
        """Return what is published and prepared, for the readiness probe."""
        state = self.driver
        return f"{state.slices} ResourceSlices, {state.claims} prepared claims" if ready else ""

    def withhold(self, reason: str) -> None:
        """Publish and prepare no devices for this reason; with an empty reason, publish them again.

        A claim that the scheduler has allocated meanwhile may have a device that a pod has otherwise, so that it waits.
        Prepared claims stay, and further pods can share them.
        """
        self._claims.withheld = reason
        self._publisher.withhold(reason)

    def rescan(self) -> None:
        """Request a full scan without a file event, and a comparison with the API server."""
        super().rescan()
        self._compare()

    def _problems(self) -> list[str]:
        """Return why pods may not get a device now.

        A pod whose claim cannot be prepared is tried again after a minute. A rollout therefore waits until the kubelet
        has registered the driver, and until the API server has the ResourceSlices as they should be.
        """
        unconfirmed = "" if self._publisher.confirmed else "the ResourceSlices are not confirmed yet"
        return [
            self._registration.problem,
            self._publisher.problem or unconfirmed,
            self._api.problem,
            self._scanned.problem,
            self._claims.problem,
        ]

    def _beside(self) -> list[Coroutine[None, None, None]]:
        return [self._publish(), self._claims.run(self._claim_files, self._stop), self._follow_kubelet()]

    async def _start(self, *, require_devices: bool) -> None:
        """Scan, and restore the claims before the kubelet asks for them. Later rounds retry what fails."""
        await super()._start(require_devices=require_devices)
        await self._claims.repair(self._timings.hang)

    async def _publish(self) -> None:
        """Publish the devices, at first only when the kubelet has registered the driver, or has had time for it.

        A pod that is bound to the node before cannot be prepared, and is tried again after a minute.
        """
        await wait_any(self._registration.first_registered, timeout=self._timings.publish_wait)
        await self._publisher.run()

    async def _follow_kubelet(self) -> None:
        """Compare everything after each start of the kubelet, which deletes the node's ResourceSlices."""
        while True:
            await self._registration.restarted.wait()
            self._registration.restarted.clear()
            self._compare()

    def _compare(self) -> None:
        self._publisher.check()
        self._claims.check()

    async def _close_connections(self) -> None:
        """End the work for claims, which uses the API client, before the client."""
        try:
            await super()._close_connections()
        finally:
            await self._api.close()
