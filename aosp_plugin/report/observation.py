"""The state of the running plugins for ``/status`` and ``/metrics``, which therefore show the same numbers."""

from __future__ import annotations

import collections
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.podresources_client import Owner, PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.timing import wait_any
from aosp_plugin.report.document import LogRecord, ReloadReport
from aosp_plugin.report.status import ResourceStatus

MAX_RECORDS = 100
MAX_LENGTH = 500
"""Characters of a message or a value: an error may be longer."""


class Ages:
    """When the state of each device of one resource began: when the plugin noticed it. For the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self._clock = clock
        self._states: Mapping[str, tuple[Owner, ...] | None] = {}
        """The owners of each allocated device; None for devices that are unhealthy or gone."""
        self.since: Mapping[str, float] = {}
        """When the state of each of these devices began. Replaced by a single assignment; may be read in any thread."""
        self.gone = 0
        """Number of devices that pods have and that no longer exist."""

    def read(self, snapshot: Snapshot, owners: Mapping[str, tuple[Owner, ...]]) -> None:
        """Compare the devices, and the pods that have them by device ID, with those of the last call."""
        truncated = itertools.islice(snapshot.devices, len(snapshot.devices) - snapshot.truncated, None)
        gone = owners.keys() - snapshot.devices.keys() if snapshot.revision else ()
        unhealthy = (*(device.id for device in snapshot.unhealthy), *truncated, *gone)
        before, self._states = self._states, {**owners, **dict.fromkeys(unhealthy)}
        began, now = self.since, self._clock()
        same = {device_id for device_id in before.keys() & self._states if before[device_id] == self._states[device_id]}
        self.since = {device_id: began[device_id] if device_id in same else now for device_id in self._states}
        self.gone = len(gone)


class RecentLog(logging.Handler):
    """Keeps the latest records from the level info on: they say what has changed on the node. For any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logs.add_resource)
        self._records: collections.deque[LogRecord] = collections.deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            message = _text(record.getMessage())
            fields = {name: _text(value) for name, value in logs.fields(record).items()}
        except Exception:  # noqa: BLE001 - as every handler: a library's wrong record must not fail its caller
            self.handleError(record)
            return
        resource = fields.pop("resource", "")
        self._records.appendleft(LogRecord(record.created, record.levelname.lower(), message, resource, fields))

    @property
    def records(self) -> tuple[LogRecord, ...]:
        """The records, newest first."""
        self.acquire()
        try:
            return tuple(self._records)
        finally:
            self.release()


class Observation:
    """The metrics, the ages, the status and the log of the resources of one configuration."""

    def __init__(
        self,
        backends: Mapping[str, BinderBackend],
        found: Callable[[str], FoundDevices],
        pod_resources: PodResources,
        conditions: Conditions,
        *,
        polling: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the metrics. ``found`` returns the result of the last scan of a resource.

        ``polling`` returns whether inotify is unavailable. ``clock`` returns seconds since the epoch.
        """
        self.pod_resources = pod_resources
        self.conditions = conditions
        self.log = RecentLog()
        self._ages = {name: Ages(clock) for name in backends}
        self._backends = backends
        self._found = found
        self.last_reload: ReloadReport | None = None
        """The last reload of the configuration."""
        self.metrics = Metrics("aosp_plugin", reasons=tuple(Reason), polling=polling)
        self.metrics.registry.register(self)

    async def run(self, servers: Sequence[ResourceServer]) -> None:
        """Record when states begin, until cancelled. For the event loop of the servers."""
        answered, owners = self.pod_resources.answered, self.pod_resources.latest.owners
        while True:
            answered.clear()
            if not self.pod_resources.latest.problem:  # else the pods still have what they had
                owners = self.pod_resources.latest.owners
            superseded = []
            for server in servers:
                snapshot = server.inventory.snapshot
                self._ages[server.resource_name].read(snapshot, owners.get(server.resource_name, {}))
                superseded.append(server.inventory.superseded(snapshot.revision))
            await wait_any(answered, *superseded)

    def status(self, server: ResourceServer) -> ResourceStatus:
        """Return the status of a resource. For any thread."""
        name = server.resource_name
        return ResourceStatus(server, self._backends[name], self._found(name), self._ages[name].since)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are computed at each scrape, for prometheus_client. Unknown states have no series."""
        allocated, backends = self.pod_resources.allocated(), self._backends
        yield _by_resource(
            "devices_allocated",
            "Devices allocated to pods, in any state, as `allocated` in `/status`; absent while unknown.",
            allocated,
        )
        yield _by_resource(
            "devices_gone",
            "Devices allocated to pods that no longer exist; absent while unknown.",
            {name: self._ages[name].gone for name in allocated},
        )
        yield _by_resource(
            "devices_expected",
            "`phones.count`; absent without `phones`.",
            {name: each.expected for name, each in backends.items() if each.expected is not None},
        )
        yield _by_resource(
            "devices_restricted",
            "Healthy devices that not all users of a container may open, because of the mode of a binder device.",
            {name: len(self._found(name).restricted) for name in backends},
        )
        spread_devices = GaugeMetricFamily(
            "aosp_plugin_spread_devices",
            "Devices, healthy or not, by the path of their spread device, which may be lost; absent without any.",
            labels=["resource", "device"],
        )
        for name, each in backends.items():
            for path, ids in self._found(name).by_spread_device.items():
                spread_devices.add_metric([name, path], sum(len(each.advertised_ids(device_id)) for device_id in ids))
        yield spread_devices


def _by_resource(name: str, text: str, counts: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"aosp_plugin_{name}", text, labels=["resource"])
    for resource, count in counts.items():
        family.add_metric([resource], count)
    return family


def _text(value: object) -> str:
    """Return a value as text that the report can have: the name of a file may have bytes that are no UTF-8."""
    return str(value)[:MAX_LENGTH].encode(errors="backslashreplace").decode()
