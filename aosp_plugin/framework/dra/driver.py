"""A DRA driver: one backend, kept current, published in ResourceSlices, and prepared for claims."""

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import ServiceAccount
from aosp_plugin.framework.backend import Backend
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.dra.api_claims import get_claim
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.dra.kubelet_service import KubeletService
from aosp_plugin.framework.dra.publisher import SlicePublisher
from aosp_plugin.framework.resource_server import DriverState, ResourceServer
from aosp_plugin.framework.runtime import Runtime

QUIET, LONGEST_DELAY = 0.1, 0.25
"""In place of those of ``Timings``, in seconds. Each claim that is prepared or unprepared causes events, and scans
between the preparations of many claims would take longer than these do, in the same worker thread."""


class DraDirectories(NamedTuple):
    """Where a driver has its files; paths of this process."""

    registry: str
    """Where the kubelet looks for sockets of plugins: plugins_registry in its root directory."""
    state: str
    """For the records of the prepared claims: plugins/DRIVER in the kubelet's root directory. Beside it are those of
    other drivers."""
    cdi: str
    """CDI specs; the container runtime must read them."""


class DraDriver(ResourceServer):
    """The DRA driver of one resource. Create and run it in the same event loop; it runs once."""

    registration: KubeletService
    _is_listed = False

    def __init__(
        self,
        backend: Backend[Any],
        *,
        node_name: str,
        directories: DraDirectories,
        credentials: ServiceAccount,
        kubelet_socket: str = "",
        runtime: Runtime | None = None,
    ) -> None:
        """``credentials`` are for the API server, and closed at the end.

        ``kubelet_socket`` is that of the kubelet's podresources API, which shows whether the kubelet runs.

        Drivers of the same process share ``runtime``; None for one of its own.
        """
        runtime = runtime or Runtime()
        runtime = replace(runtime, timings=runtime.timings._replace(quiet=QUIET, longest_delay=LONGEST_DELAY))
        self._timings, self._metrics = runtime.timings, runtime.metrics
        self._metrics.add(backend.resource_name, is_driver=True)
        super().__init__(backend, runtime)
        self.driver_name = slices.driver_name(backend.resource_name)
        self.confirmation.unavailable("the devices are in ResourceSlices")
        self._api = ApiClient(credentials, observer=self._count_request, user_agent=self.driver_name)
        self._claims = Claims(
            backend,
            self.driver_name,
            node_name,
            get_claim=partial(get_claim, self._api),
            worker=self._scan_loop.worker,
            inventory=self.inventory,
            state_directory=directories.state,
            cdi_directory=directories.cdi,
            pods_changed=self.pods_changed.set,
            runtime=runtime,
        )
        self._claim_files = self._scan_loop.subscribe()
        self.registration = KubeletService(
            self.driver_name,
            backend.resource_name,
            directories.registry,
            self._claims,
            files=self._kubelet_files,
            stop=self._stop,
            kubelet_socket=kubelet_socket,
            runtime=runtime,
        )
        self._publisher = SlicePublisher(
            self._api,
            self.driver_name,
            node_name,
            self.inventory,
            backend.attributes,
            resource=backend.resource_name,
            runtime=runtime,
        )

    @property
    def driver(self) -> DriverState:
        """The state of the driver. May be read in any thread."""
        return DriverState(self.driver_name, *self._publisher.counts, len(self._claims.prepared))

    def withhold(self, reason: str) -> None:
        """Publish and prepare no devices for this reason; with an empty reason, publish them again.

        A claim that the scheduler allocates meanwhile waits, because another pod may have its device. Prepared claims
        stay, and further pods can share them.
        """
        self._claims.withheld = reason
        self._publisher.withhold(reason)

    def rescan(self) -> None:
        """Request a full scan without a file event, and a comparison with the API server."""
        super().rescan()
        self._publisher.check()
        self._claims.check()

    def _beside(self) -> list[Coroutine[None, None, None]]:
        return [self._publish(), self._claims.run(self._claim_files), self._follow_kubelet()]

    async def _start(self) -> None:
        """Scan, and restore the claims before the kubelet asks for them. Later rounds retry what fails."""
        await super()._start()
        await self._claims.repair(self._timings.hang)

    async def _publish(self) -> None:
        """Publish the devices once a kubelet has registered the driver; they stay published while it restarts.

        Pods that are bound to the node earlier could not start; never, if no kubelet knows the driver's directory.
        """
        await self.registration.first_registered.wait()
        await self._publisher.run()

    async def _follow_kubelet(self) -> None:
        """Compare everything after each start of the kubelet, which deletes the node's ResourceSlices."""
        while True:
            await self.registration.restarted.wait()
            self.registration.restarted.clear()
            self._publisher.doubt()
            self._claims.check()

    def _count_request(self, verb: str, object_name: str, code: str, seconds: float) -> None:
        """Count a request to the API server. ``code`` is an HTTP status, or ``error`` without an answer."""
        self._metrics.api_requests.labels(self.resource_name, verb, object_name, code).inc()
        self._metrics.api_request_duration.labels(self.resource_name).observe(seconds)

    async def _close_connections(self) -> None:
        """End the work for claims before what it uses: the API client, and the lock of the records."""
        try:
            await super()._close_connections()
        finally:
            await self._api.aclose()
            await self._claims.close(self._stop.remaining)
