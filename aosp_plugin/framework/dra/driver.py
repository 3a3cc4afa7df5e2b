"""A DRA driver: one backend, kept current, published in ResourceSlices, and prepared for claims."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import complete_unless, run_and_close, wait_any
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.deviceplugin.kubelet_view import Confirmation
from aosp_plugin.framework.dra import driver_names
from aosp_plugin.framework.dra.claim_records import get_claim
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.dra.kubelet_service import KubeletService
from aosp_plugin.framework.dra.publisher import SlicePublisher
from aosp_plugin.framework.dra.reconciler import Reconciler
from aosp_plugin.framework.observer import NULL_DRA_OBSERVER, NULL_OBSERVER, working_for
from aosp_plugin.framework.resource_server import DriverState
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.timings import DEFAULT

if TYPE_CHECKING:
    from aosp_plugin.framework.apiserver.credentials import Credentials
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.events.file_events import FileEvents
    from aosp_plugin.framework.observer import DraObserver, Observer

RESTORE_TIMEOUT = 10.0
"""Seconds for restoring the claims before the kubelet is served. The kubelet's requests wait for it anyway."""

SCAN_TIMINGS = DEFAULT._replace(quiet=0.1, longest_delay=0.25)
"""Each claim that is prepared or unprepared causes events, and scans between the preparations of many claims would take
longer than these do, in the same worker thread."""

REGISTRATION_TIME = 5.0
"""Seconds after which devices are published although the kubelet has not registered the driver, which takes it about
a second: a kubelet that does not answer must not keep the API server from knowing the host's devices."""


class DraDirectories(NamedTuple):
    """Where a driver has its files; paths of this process."""

    registry: str
    """Where the kubelet looks for sockets of plugins: plugins_registry in its root directory."""
    state: str
    """For the lock that excludes another process of the driver."""
    cdi: str
    """CDI specs; the container runtime must read them."""


class DraDriver:
    """The DRA driver of one resource. Create and run it in the same event loop; it runs once.

    The backend has a worker thread of its own, see ``Backend``.
    """

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
        dra_observer: DraObserver = NULL_DRA_OBSERVER,
    ) -> None:
        """``credentials`` are for the API server, and closed at the end.

        ``kubelet_socket`` is that of the kubelet's podresources API, which shows whether the kubelet runs.

        Drivers of the same process share ``files``; the caller that creates ``files`` also closes it.
        """
        self.resource_name = backend.resource_name
        """The extended resource for which pods may ask instead of a claim, and from which the driver has its name."""
        self.driver_name = driver_names.driver_name(backend.resource_name)
        self._stop = asyncio.Event()
        self._scanned = ScanLoop(backend, self._stop, files=files, observer=observer, timings=SCAN_TIMINGS)
        self.inventory = self._scanned.inventory
        self.confirmation = Confirmation()
        self.confirmation.unavailable("the devices are in ResourceSlices")
        self._registry_files = self._scanned.files.subscribe()
        self._api = ApiClient(credentials, observer=dra_observer.api_request, user_agent=self.driver_name)
        self._claims = Claims(
            backend,
            self.driver_name,
            node_name,
            get_claim=partial(get_claim, self._api),
            worker=self._scanned.worker,
            inventory=self.inventory,
            state_directory=directories.state,
            cdi_directory=directories.cdi,
            observer=dra_observer,
        )
        self._reconciler = Reconciler(self._claims, self._scanned.subscribe(), self._stop)
        self._service = KubeletService(
            self.driver_name,
            directories.registry,
            self._claims,
            files=self._registry_files,
            stop=self._stop,
            kubelet_socket=kubelet_socket,
            observer=observer,
        )
        self._publisher = SlicePublisher(
            self._api, self.driver_name, node_name, self.inventory, backend.attributes, self._stop, dra_observer
        )

    @property
    def driver(self) -> DriverState:
        """What is published and prepared. May be read in any thread."""
        return DriverState(self.driver_name, *self._publisher.counts, len(self._claims.prepared))

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered the driver."""
        return self._service.registered

    @property
    def unready(self) -> str:
        """Why pods may not get a device now; empty if they can. May be read in any thread.

        A pod whose claim cannot be prepared is tried again after a minute. A rollout therefore waits until the kubelet
        has registered the driver, and until the API server has the ResourceSlices as they should be.
        """
        unconfirmed = "" if self._publisher.confirmed else "the ResourceSlices are not confirmed yet"
        problems = [
            self._service.problem,
            self._publisher.problem or unconfirmed,
            self._scanned.problem,
            self._claims.problem,
        ]
        return "; ".join(problem for problem in problems if problem)

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

    def stop(self) -> None:
        """Make ``run`` return: the socket is removed. ResourceSlices and prepared claims stay for the next process."""
        self._stop.set()

    def rescan(self) -> None:
        """Request a full scan without a file event, and a comparison with the API server."""
        self._scanned.trigger()
        self._compare()

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without any other effect.

        Either ``run`` or ``discard`` has to follow. Raises what ``ScanLoop.prepare`` raises.
        """
        with working_for(self.resource_name):
            await self._scanned.prepare(require_devices=require_devices)

    async def discard(self) -> None:
        """Release the resources of a driver that does not run. ``Backend.close`` is not called."""
        with working_for(self.resource_name):
            await self._close(close_backend=False)

    async def run(self, *, require_devices: bool = False) -> None:
        """Serve until ``stop`` is called; ``prepare`` first, if that has not happened yet.

        Raises what ``prepare`` raises, except that a scan which hangs does not keep the driver from serving. Later
        scans, the kubelet and the API server may fail. Several errors are raised as a group.
        """
        with working_for(self.resource_name):
            await run_and_close(self._run(require_devices=require_devices), self._close(close_backend=True))

    async def _run(self, *, require_devices: bool) -> None:
        if await complete_unless(self._stop, self._start(require_devices=require_devices)):
            await self._serve()

    async def _start(self, *, require_devices: bool) -> None:
        """Scan, and restore the claims before the kubelet asks for them. The reconciler retries what fails."""
        await self._scanned.start(require_devices=require_devices)
        await self._claims.repair(RESTORE_TIMEOUT)

    async def _serve(self) -> None:
        """Serve until ``stop`` is set, or a task fails."""
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self._scanned.run()),
                tasks.create_task(self._publish()),
                tasks.create_task(self._reconciler.run()),
                tasks.create_task(self._follow_kubelet()),
            ]
            await self._service.run()
            for task in others:
                task.cancel()

    async def _publish(self) -> None:
        """Publish the devices, at first only when the kubelet has registered the driver, or has had time for it.

        A pod that is bound to the node before cannot be prepared, and is tried again after a minute.
        """
        await wait_any(self._service.first_registered, timeout=REGISTRATION_TIME)
        await self._publisher.run()

    async def _follow_kubelet(self) -> None:
        """Compare everything after each start of the kubelet, which deletes the node's ResourceSlices."""
        while True:
            await self._service.restarted.wait()
            self._service.restarted.clear()
            self._compare()

    def _compare(self) -> None:
        self._publisher.check()
        self._reconciler.trigger()

    async def _close(self, *, close_backend: bool) -> None:
        self._scanned.files.unsubscribe(self._registry_files)
        await self._scanned.close(self._close_connections(), close_backend=close_backend)

    async def _close_connections(self) -> None:
        """End the work for claims, which uses the API client, before the client."""
        try:
            await self._service.close()
        finally:
            await self._api.close()
