"""The binder devices of one resource as of the last scan, and their history from scan to scan."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery import health, scanner
from aosp_plugin.binder.discovery.binder_device import BinderDevice, Kind
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.discovery.names import merge_sorted, natural_sort
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver
from aosp_plugin.binder.errors import BinderfsError, DeviceDirectoryError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.discovery.binder_device import FileSystem
    from aosp_plugin.binder.discovery.health import Verify
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)


class TrackedDevice(NamedTuple):
    """A binder device as of the last scan, and its history."""

    device: BinderDevice
    file_system: FileSystem | None
    """File system of the first scan that found it healthy. None before: no container can have the device yet."""
    reason: Reason | None
    """None if it is healthy."""
    since: float
    """When the reason last changed, in seconds of the caller's clock."""


class DeviceStore:
    """The binder devices of one resource.

    ``scan`` runs in one thread at a time. The other methods may be called from any thread: each attribute that they
    read is replaced by a single assignment.
    """

    def __init__(
        self,
        host: Host,
        *,
        directory: str,
        layout: Layout,
        verify: Verify,
        missing_device_ttl: float,
        require_directory: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``missing_device_ttl`` is in seconds. ``require_directory``: the first scan requires the device directory."""
        self._host = host
        self._directory = os.path.normpath(directory)
        self._layout = layout
        self._verify = verify
        self._missing_device_ttl = missing_device_ttl
        self._require_directory = require_directory
        self._clock = clock
        self._tracked: Mapping[str, TrackedDevice] | None = None
        self._skipped: set[str] = set()
        self._targets: frozenset[str] = frozenset({self._directory})
        self._links: dict[str, set[str]] = {}
        self._scanned_directory = ""
        self._driver = Driver()
        self._probe_denied = False
        self._reset = False
        self.names: Sequence[str] = ()
        """Names of the binder devices in natural order, including missing ones until their TTL has expired."""

    def directories(self) -> frozenset[str]:
        """Return the directories to watch, as paths of this process."""
        return frozenset(self._process_path(directory) for directory in self._targets)

    def scan(self, changed: Collection[str] | None = None) -> Collection[str] | None:
        """Scan the host; only what depends on the files ``changed`` (paths of this process), if given.

        Returns the names of the binder devices that were read, or None if all were. A missing device directory is an
        empty one, except for the first scan if it is required, because a wrong path is then the most likely cause.
        Raises DeviceDirectoryError and OSError.
        """
        driver = self._host.driver()
        names = self._affected(changed, driver) if changed is not None else None
        if names is None:
            self._scan_all(driver)
        elif names:
            self._scan_some(names)
        return names

    def reset(self) -> None:
        """Make the next scan forget the history: it accepts the binder devices that it finds, and drops the others."""
        self._reset = True

    def reason(self, name: str) -> Reason | None:
        """Return why a binder device is unhealthy, or None if it is healthy; MISSING if no scan has found it."""
        tracked = (self._tracked or {}).get(name)
        return tracked.reason if tracked is not None else Reason.MISSING

    def device(self, name: str) -> BinderDevice | None:
        """Return a binder device as of the last scan, or None if no scan has found it."""
        tracked = (self._tracked or {}).get(name)
        return tracked.device if tracked is not None else None

    def recheck(self, names: Iterable[str]) -> dict[str, tuple[BinderDevice | None, Reason | None]]:
        """Read binder devices from the host again, without a probe, because they may have changed since the last scan.

        Uses the driver's state as of that scan: devices of a binderfs that was mounted later are on another file
        system.
        """
        reader = scanner.DeviceReader(self._host, self._driver, self._directory)
        tracked = self._tracked or {}
        fresh: dict[str, tuple[BinderDevice | None, Reason | None]] = {}
        for name in names:
            device, known = reader.read(name), tracked.get(name)
            if device is None or known is None:
                fresh[name] = None, Reason.MISSING
            else:
                fresh[name] = device, health.evaluate(device, self._verify, known.file_system)
        return fresh

    def _affected(self, changed: Collection[str], driver: Driver) -> set[str] | None:
        """Return the names of the binder devices that depend on these files; None if all may have changed."""
        directory = self._process_path(self._directory)
        same = driver == self._driver and directory == self._scanned_directory
        if self._tracked is None or self._reset or self._layout.nested or not same:
            return None
        files = [os.path.split(path) for path in changed]
        names, skipped = scanner.usable_entries([name for parent, name in files if parent == directory], self._layout)
        self._log_skipped(skipped)
        return {*names, *(name for path in changed for name in self._links.get(path, ()))}

    def _scan_all(self, driver: Driver) -> None:
        try:
            scan = scanner.scan(self._host, driver, self._directory, self._layout)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._tracked is None and self._require_directory:
                raise DeviceDirectoryError(f"cannot read the device directory {self._directory}: {error}") from error
            scan = scanner.Scan((), {}, frozenset({self._directory}))
        self._skipped &= scan.skipped.keys()
        self._log_skipped(scan.skipped)
        devices = (*scan.devices, *self._missed_by_listing(scan, driver))
        history = {} if self._reset else self._tracked or {}
        self._reset = False
        tracked = self._track(history, devices)
        names = [device.name for device in scan.devices]
        self._driver = driver
        self._scanned_directory = self._process_path(self._directory)
        self._targets = scan.directories
        self._links = {self._host.process_path(file): {*names} for file, names in scan.links.items()}
        self.names = names if len(tracked) == len(names) else natural_sort(list(tracked))
        self._tracked = tracked

    def _scan_some(self, names: Collection[str]) -> None:
        """Read these binder devices only. The state of the others is kept."""
        reader = scanner.DeviceReader(self._host, self._driver, self._directory)
        before = self._tracked or {}
        history = {name: before[name] for name in names if name in before}
        after = self._track(history, reader.read_all(names))
        tracked = {**before, **after}
        expired = history.keys() - after.keys()
        for name in expired:
            del tracked[name]
        remaining = [name for name in self.names if name not in expired] if expired else self.names
        added = after.keys() - before.keys()
        for file, dependents in reader.links.items():
            self._links.setdefault(self._host.process_path(file), set()).update(dependents)
        self._targets |= reader.targets
        self.names = merge_sorted(remaining, added) if added else remaining
        self._tracked = tracked

    def _track(self, history: Mapping[str, TrackedDevice], devices: Iterable[BinderDevice]) -> dict[str, TrackedDevice]:
        def evaluate(device: BinderDevice, file_system: FileSystem | None) -> Reason | None:
            return health.evaluate(device, self._verify, file_system, self._probe)

        return track(history, devices, self._clock(), self._missing_device_ttl, evaluate)

    def _missed_by_listing(self, scan: scanner.Scan, driver: Driver) -> Sequence[BinderDevice]:
        """Read each known binder device that the listing lacks, before it counts as missing.

        The kernel lists a binderfs in several steps (fs/libfs.c ``dcache_readdir``): a device that is recreated between
        two of them may be in none.
        """
        missing = (self._tracked or {}).keys() - {device.name for device in scan.devices}
        return scanner.DeviceReader(self._host, driver, self._directory).read_all(missing) if missing else ()

    def _probe(self, device: BinderDevice) -> bool:
        """Return whether the driver of a device responds; assume so if this process may not open the device."""
        try:
            version = binderfs.binder_version(self._process_path(device.path))
        except NotPermittedError as error:
            if not self._probe_denied:
                self._probe_denied = True
                LOG.warning(
                    "binder devices cannot be probed: grant the right to open them, or use --verify binder",
                    extra={"error": str(error)},
                )
            return True
        except (BinderfsError, OSError):
            return False
        return version == binderfs.PROTOCOL_VERSION

    def _process_path(self, path: str) -> str:
        return self._host.process_path(self._host.resolve(path))

    def _log_skipped(self, skipped: Mapping[str, str]) -> None:
        for name in sorted(skipped.keys() - self._skipped):
            LOG.warning("file skipped", extra={"file": ascii(name), "reason": skipped[name]})
        self._skipped |= skipped.keys()


def track(
    history: Mapping[str, TrackedDevice],
    devices: Iterable[BinderDevice],
    now: float,
    missing_device_ttl: float,
    evaluate: Callable[[BinderDevice, FileSystem | None], Reason | None],
) -> dict[str, TrackedDevice]:
    """Return the state after a scan that found ``devices``, given the ``history`` before it.

    A binder device that vanished is missing for ``missing_device_ttl`` seconds and is then dropped. One that was
    missing or replaced for that time counts as new: its present file system becomes the expected one.
    """
    tracked: dict[str, TrackedDevice] = {}
    file_systems: dict[FileSystem, FileSystem] = {}  # each tuple once for all devices

    def update(known: TrackedDevice | None, device: BinderDevice) -> TrackedDevice:
        file_system = known.file_system if known is not None else None
        reason = evaluate(device, file_system)
        if reason is None and device.identity is not None:
            file_system = file_systems.setdefault(device.identity.file_system, device.identity.file_system)
        since = known.since if known is not None and known.reason is reason else now
        updated = TrackedDevice(device, file_system, reason, since)
        return known if updated == known else updated

    current = {name: known for name, known in history.items() if not _expired(known, now, missing_device_ttl)}
    for device in devices:
        tracked[device.name] = update(current.get(device.name), device)
    for name, known in current.items():
        if name not in tracked:
            tracked[name] = update(known, BinderDevice(name, known.device.path, Kind.ABSENT))
    return tracked


def _expired(known: TrackedDevice, now: float, missing_device_ttl: float) -> bool:
    return known.reason in {Reason.MISSING, Reason.REPLACED} and now - known.since >= missing_device_ttl
