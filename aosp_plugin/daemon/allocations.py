"""Finds out which devices pods have, and tells backends and drivers as far as they have to know it.

The backends remove surplus phones that are free, and offer no device that a pod has under another name, through the
other API, or that another process offers. A DRA driver offers no device that a device plugin offers on the same node:
nodes move from one API to the other one by one, and a mistake in their labels runs both on a node, where the scheduler
would give each device away twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.catalog import RECORDS_NOT_UPDATED, RECORDS_UNREADABLE
from aosp_plugin.backend.found_devices import Allocated, FoundDevices
from aosp_plugin.backend.offers import Offers
from aosp_plugin.config.values import Api
from aosp_plugin.daemon import held_devices
from aosp_plugin.daemon.device_records import DeviceRecord, DeviceRecords, OtherRecord
from aosp_plugin.daemon.held_devices import Known
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.claim_records import Others
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.podresources_client import ALLOCATIONS_INTERVAL, Allocations, PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timing import CLOCK, DEFAULT, Clock
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

ALLOCATED_PAUSE = 3.0
"""Seconds from the request to allocate a device to the question who has it."""


class AllocationWatch:
    """Keeps the device records current, and tells the backends which of their devices pods have. For one event loop."""

    def __init__(
        self,
        backends: Mapping[str, BinderBackend],
        found: Callable[[str], FoundDevices],
        pod_resources: PodResources,
        records: DeviceRecords,
        rescan: Callable[[str], None],
        read_claims: Callable[[], Others],
        serve_former: Callable[[Collection[str], Others], Awaitable[None]],
        remove_specs: Callable[[Sequence[DeviceRecord]], Awaitable[bool]],
        conditions: Conditions,
        offers: Offers | None = None,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        """``found`` returns what the last scan of a resource has found.

        ``rescan`` is called with each resource whose devices change by what was found out.
        ``read_claims`` returns the records of claims on this host, and is called in the worker thread.
        ``serve_former`` is called with the resources of which pods have devices although their device plugin has gone,
        and some of whose devices are those of ``backends``, and with these claims.
        ``remove_specs`` is called with the records of resources whose stale CDI specs are to be removed, and returns
        whether they are.
        ``offers`` are those of ``backends``; None if there is only one.
        """
        self._backends = backends
        self._found = found
        self._pod_resources = pod_resources
        self._records = records
        self._offers = offers or Offers()
        self._rescan = rescan
        self._serve_former = serve_former
        self._read_claims = read_claims
        self._remove_specs = remove_specs
        self._claims = Others((), ())
        self._clock = clock
        self._worker = Worker("device records")
        self._asking = asyncio.Lock()
        self._others: list[OtherRecord] | None = None
        """The records of other resources as of the last question; None if they were never read."""
        self._latest: Allocations | None = None
        """The last answer of the kubelet that was believed; None before it."""
        self._answered = -math.inf
        """When the last question began whose answer was believed, and after which all records were read."""
        self._allocated: dict[str, float] = {}
        """When pods got devices of a resource last, until the kubelet was asked who has them."""
        self._renamed: Collection[str] = ()
        """The resources that ``serve_former`` is called with."""
        self._stale: Sequence[DeviceRecord] = ()
        """The records of former resources whose CDI specs are to be removed."""
        self._conditions = conditions
        self._read_failure = ""
        """Why the records could not be read the last time, for people; empty if they were."""

    def close(self) -> None:
        """End the thread. The records stay, but tell other processes that this one offers no device any more."""
        self._worker.close(self._records.close)

    async def begin(self) -> None:
        """Record what the devices are, and withhold those that pods may have under another name.

        To be called before the first scan, so that its result already lacks these devices, and again before the devices
        are offered for the first time.
        """
        async with self._asking:
            await self._record()
            if len(self._backends) > 1:
                for name, record in self._records.own.items():
                    self._offers.keep(name, record.devices)
            await self._read_others()
            self._tell()

    async def run(self, servers: Sequence[ResourceServer]) -> None:
        """Ask the kubelet at intervals, and after allocations; record each change of the devices, until cancelled."""
        while True:
            await self.ask()
            await self.follow_up()
            pause = DEFAULT.retry if self._others is None else ALLOCATIONS_INTERVAL
            await self._record_changes(servers, self._clock() + pause)

    async def ask(self) -> bool:
        """Ask the kubelet which devices pods have. Return whether it answered, or cannot be asked on this node.

        A kubelet that has listed no pod but static ones since it started is not believed: its pods may run, and it may
        not know them yet.

        What was not read, or not asked after it was read, counts as in use. So the records of others are read before
        the question: a process that serves a resource no more gives no device to a pod that the answer lacks.
        """
        async with self._asking:
            await self._record()
            lost = self._offers.lost({name: self._found(name).files.values() for name in self._backends})
            asked = self._clock()
            await self._read_others()
            answer = await self._query(asked)
            self._stale = [] if answer is None else self._find_stale(answer)
            if answer is not None:
                settled = asked - ALLOCATED_PAUSE
                self._allocated = {name: at for name, at in self._allocated.items() if at > settled}
                used = {name: held_devices.used_ids(name, answer) for name in self._backends}
                self._offers.release(lost, used)
                await self._record(answer)
            return answer is not None

    async def follow_up(self) -> None:
        """Remove what nothing needs any more, and serve former names, both as of the last question.

        That are CDI specs, and the records of former resources of which no pod has a device. The directories of specs
        and drivers may hang, so that ``ask`` does not wait for this.
        """
        stale = self._stale
        is_removed = await self._remove_specs([*self._records.own.values(), *stale])
        if stale and is_removed and self._pod_resources.enabled:
            await self._record(unused=stale)
        await self._serve_former(self._renamed, self._claims)

    async def _query(self, asked: float) -> Allocations | None:
        """Ask the kubelet, and tell the backends. Return its answer; None if it has none that is believed."""
        others = {record.resource: record.devices for record, _ in self._others or ()}
        allocations = await self._pod_resources.query(others)
        known = not allocations.problem and allocations.pods_known
        for name, backend in self._backends.items():
            places = (place for content in self._claims.prepared for place in content.places)
            claimed = filter(None, map(self._found(name).device_at, places))
            ids = frozenset({*allocations.owners.get(name, ()), *claimed})
            is_known = known and not (self._claims.damaged or self._read_failure)
            backend.input = backend.input._replace(allocated=Allocated(ids, asked) if is_known else None)
        if not (known or not self._pod_resources.enabled):
            if self._latest is None:  # later, an older answer releases nothing that was read since
                self._tell()
            return None
        self._latest = allocations
        if not (self._read_failure or self._claims.damaged):
            self._answered = asked
        self._tell()
        self._renamed = self._find_renamed(allocations)
        return allocations

    def _find_stale(self, allocations: Allocations) -> list[DeviceRecord]:
        """Return the records of former resources whose CDI specs nothing needs: those of which no pod has a device.

        Where the kubelet cannot be asked, they are those of this process's predecessor.
        """
        former = [record for record, is_served in self._others or () if not is_served]
        if allocations.problem:
            return [record for record in former if record.main == self._records.main]
        return [record for record in former if held_devices.used_ids(record.resource, allocations) == set()]

    def _tell(self) -> None:
        """Tell each backend which of its devices pods have, or may have, and which another process offers."""
        own = self._records.own
        known = Known(own, self._others, self._latest, self._claims.prepared, self._read_failure)
        for name, backend in self._backends.items():
            before, found = backend.input, self._found(name)
            held = held_devices.held(backend, found, known)
            claimed = held_devices.used_by_claims(backend, found, known.claims)
            if backend.api is Api.DEVICE_PLUGIN:
                held, claimed = claimed | held, {}
            backend.input = before._replace(
                held=held,
                held_since=partial(held_devices.held_since, backend, known, found),
                claimed=claimed,
                asked=self._answered,
                former=own[name].devices.keys() if name in own else before.former,
            )
            has_suspects = not {*held, *claimed, *before.unrecorded}.issuperset(found.state.held)
            if (held, claimed) != (before.held, before.claimed) or has_suspects:
                self._rescan(name)

    def _find_renamed(self, allocations: Allocations) -> set[str]:
        """Return the resources of which pods have devices of a backend by a device plugin that has gone.

        The plugin of another one may be about to return, as in an update of its release: without it, the kubelet waits
        before it starts a container again, and keeps the capacity of the node.
        """
        served = {name for name, backend in self._backends.items() if backend.api is Api.DEVICE_PLUGIN}
        served |= {record.resource for record, is_served in self._others or () if is_served}
        return {
            record.resource
            for record in self._all_records()
            if record.resource not in served
            and allocations.by_plugin.get(record.resource)
            and any(held_devices.devices_of(self._found(name), record) for name in self._backends)
        }

    def _all_records(self) -> list[DeviceRecord]:
        """Return the records of all resources on this host, as they were last read or written."""
        return [*self._records.own.values(), *(record for record, _ in self._others or ())]

    async def _record_changes(self, servers: Sequence[ResourceServer], end: float) -> None:
        """Record each change of the devices at once, or a second after the one before, until the time ``end``.

        Returns earlier if the kubelet is to be asked: a pod may have got or returned a device, or a device could be
        known under two names after a change.
        """
        changed = False
        while (left := end - self._clock()) > 0:
            revisions = [server.inventory.snapshot.revision for server in servers]
            await self._record()
            if changed and self._is_ambiguous():
                return
            rested = self._clock() + DEFAULT.retry
            changes = [each.inventory.superseded(seen) for each, seen in zip(servers, revisions, strict=True)]
            pods_changed = [server.pods_changed for server in servers]
            await self._clock.wait(*changes, *pods_changed, timeout=left)
            changed = any(each.is_set() for each in changes)
            if any(each.is_set() for each in pods_changed):
                end = min(end, self._clock() + ALLOCATED_PAUSE)
                for each in servers:
                    self._note_allocation(each)
            await self._clock.sleep(max(0.0, min(rested, end) - self._clock()))

    def _note_allocation(self, server: ResourceServer) -> None:
        """Note whether pods may have got devices of a resource through the device plugin API."""
        if server.pods_changed.is_set() and server.driver is None:
            self._allocated[server.resource_name] = self._clock()
        server.pods_changed.clear()

    def _is_ambiguous(self) -> bool:
        """Return whether pods may have a device under another name than that of the present configuration."""
        own = self._records.own.values()
        return bool(self._others) or any(
            held_devices.used_perhaps(backend, self._found(name), own, "") for name, backend in self._backends.items()
        )

    async def _record(self, allocations: Allocations | None = None, unused: Iterable[DeviceRecord] = ()) -> None:
        """Record the own devices, and remove the ``unused`` records of others. What fails is logged and retried.

        ``allocations`` are an answer of the kubelet that was asked after the records were read: former paths of the own
        devices that it does not have are forgotten.
        """
        found = {name: self._found(name) for name in self._backends}
        update = partial(_update, self._records, found, {*self._allocated}, unused, allocations)
        failure = ""
        try:
            await self._worker.run(update, DEFAULT.hang, label="update of the device records")
        except OSError as error:
            failure = error.strerror or str(error)  # the name of the temporary file differs each time
        except WorkerTimeoutError as error:
            failure = str(error)
        self._conditions.set(RECORDS_NOT_UPDATED, failure)
        for name, backend in self._backends.items():
            if backend.api is Api.DEVICE_PLUGIN:
                self._withhold_unrecorded(name, found[name], failure)

    def _withhold_unrecorded(self, name: str, found: FoundDevices, failure: str) -> None:
        """Let no new pod get a device that is not in the written record, if ``failure`` says why it is not."""
        backend, record = self._backends[name], self._records.written.get(name)
        unrecorded = held_devices.unrecorded(found, record, failure) if failure else {}
        if unrecorded != backend.input.unrecorded:
            backend.input = backend.input._replace(unrecorded=unrecorded)
            self._rescan(name)

    def _read(self) -> tuple[list[OtherRecord], Others]:
        """Read the records of other resources, and those of claims. Runs in the worker thread. Raises OSError."""
        return self._records.others(), self._read_claims()

    async def _read_others(self) -> None:
        """Read the records of other resources and of claims. Those that were read before are kept if that fails."""
        try:
            read = await self._worker.run(self._read, DEFAULT.hang, label="read of device records")
        except (OSError, WorkerTimeoutError) as error:
            self._read_failure = str(error)
        else:
            self._others, self._claims, self._read_failure = *read, ""
        self._conditions.set(RECORDS_UNREADABLE, self._read_failure)


def _update(
    records: DeviceRecords,
    found: Mapping[str, FoundDevices],
    allocated: Collection[str],
    unused: Iterable[DeviceRecord],
    allocations: Allocations | None,
) -> None:
    """See ``AllocationWatch._record``. Runs in the worker thread."""
    for record in unused:
        if records.remove(record):
            extra = {"resource": record.resource}
            LOG.info("device record removed, no pod has a device of the former resource", extra=extra)
    for name, each in found.items():
        offered = {device_id: paths for device_id, paths in each.paths.items() if device_id not in each.elsewhere}
        by_plugin = name in allocated or bool(allocations and allocations.by_plugin.get(name))
        records.write(name, offered, held_devices.used_ids(name, allocations), by_plugin=by_plugin)


async def yield_to_device_plugins(
    drivers: Iterable[DraDriver], pod_resources: PodResources, interval: float = ALLOCATIONS_INTERVAL
) -> None:
    """Ask the kubelet every ``interval`` seconds for device plugins of the drivers' resources, until cancelled.

    While the kubelet does not answer, nothing changes.
    """
    drivers = list(drivers)
    while drivers:
        allocatable = await pod_resources.allocatable()
        if not allocatable.problem:
            for driver in drivers:
                count = len(allocatable.devices.get(driver.resource_name, ()))
                driver.withhold(
                    f"a device plugin offers {count} devices of {driver.resource_name} on this node" if count else ""
                )
        await asyncio.sleep(interval)
