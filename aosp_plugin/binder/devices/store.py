"""The binder devices of one resource as of the last scan, and the history that their health depends on."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aosp_plugin.binder.devices.health import REASONS, Reason, Verify
from aosp_plugin.binder.devices.scanner import BinderDevice, DeviceReader, FileSystem, Kind, Scan, scan_devices
from aosp_plugin.binder.devices.sets import Layout
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, NotPermittedError
from aosp_plugin.binder.driver.host import Driver, Host, HostError

LOG = logging.getLogger(__name__)

SHORTEST_PAUSE = 1.0
"""Seconds, at least, from a scan to one that is due without a change: a dangling link expires again and again."""


class Past(NamedTuple):
    """The history of a binder device that is unhealthy, or that may be on another file system at the next scan."""

    file_system: FileSystem | None
    """File system on which it was healthy last. None before that: no container can have the device yet."""
    reason: Reason | None
    """None if it is healthy."""
    since: float
    """When the reason last changed, in seconds of the store's clock."""

    @property
    def expires(self) -> bool:
        """Whether the reason ends after ``missing_device_ttl``."""
        return self.reason is not None and REASONS[self.reason].expires


class DeviceStore:
    """The binder devices of one resource. To be used in one thread at a time."""

    def __init__(
        self,
        host: Host,
        *,
        directory: str,
        layout: Layout,
        verify: Verify,
        missing_device_ttl: float,
        require_directory: bool = True,
        id_suffix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``missing_device_ttl`` is in seconds. ``require_directory``: the first scan requires the device directory.

        ``id_suffix`` is the longest that an ID is advertised with.
        """
        self._host = host
        self._directory = os.path.normpath(directory)
        self._layout = layout
        self._verify = verify
        self._missing_device_ttl = missing_device_ttl
        self._require_directory = require_directory
        self._id_suffix = id_suffix
        self._clock = clock
        self.devices: Mapping[str, BinderDevice] = {}
        """The binder devices by name, including missing ones until their TTL has expired. Replaced by each scan, never
        changed."""
        self._past: Mapping[str, Past] = {}
        """The history of those that have any. All others are healthy, and on the file system of their identity."""
        self._scanned = False
        self._skipped: frozenset[str] = frozenset()
        self._watched: frozenset[str] | None = None
        self._probe_denied = False
        self._scan_due: float | None = None

    @property
    def reasons(self) -> dict[str, Reason]:
        """The reasons of the unhealthy binder devices by name."""
        return {name: past.reason for name, past in self._past.items() if past.reason is not None}

    def directories(self) -> frozenset[str]:
        """Return the directories to watch, as paths of this process. Raises OSError before the first scan."""
        watched = self._watched
        return frozenset({self._process_path(self._directory)}) if watched is None else watched

    def seconds_until_scan(self) -> float | None:
        """Return when a scan is due without a change, in seconds; None if none is."""
        due = self._scan_due
        return None if due is None else max(0.0, due - self._clock())

    def scan(self, *, forget: bool = False) -> None:
        """Scan the host. ``forget`` drops the history: the binder devices that are found are accepted as they are.

        A missing device directory is an empty one, except for the first scan if it is required, because a wrong path is
        then the most likely cause. Raises HostError and OSError.
        """
        driver = self._host.driver()
        try:
            scan = scan_devices(self._host, driver, self._directory, self._layout, self._id_suffix, self.devices)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self._scanned and self._require_directory:
                raise HostError(f"cannot read the device directory {self._directory}: {error}") from error
            scan = Scan({}, {}, frozenset(DeviceReader(self._host, driver, self._directory).directories))
        found = {**scan.devices, **self._missed_by_listing(scan, driver)}
        aliases = _aliases(found, self.devices)
        for name in aliases:
            del found[name]
        if forget:
            self.devices, self._past = {}, {}
        probe = self._probe if self._verify is Verify.PROBE else None
        self.devices, self._past = track(
            self.devices, self._past, found, self._clock(), self._missing_device_ttl, self._verify, probe
        )
        self._watched = frozenset(map(self._host.process_path, scan.directories))
        self._log_skipped({**scan.skipped, **aliases})
        self._scanned = True
        self._schedule()

    def renew(self, names: Iterable[str]) -> None:
        """Make a scan due that accepts these binder devices on whatever file system they are by then.

        To be called when the caller has mounted a file system for them: otherwise they would count as replaced.
        """
        renewed = {name: self._past.get(name, _HEALTHY)._replace(file_system=None) for name in names}
        if renewed:
            self._past = {**self._past, **{name: past for name, past in renewed.items() if name in self.devices}}
            self._scan_due = self._clock()

    def drop(self, names: Iterable[str]) -> None:
        """Forget binder devices that the caller has removed, and make a scan due: they would count as missing."""
        dropped = frozenset(names)
        if dropped:
            self.devices = {name: device for name, device in self.devices.items() if name not in dropped}
            self._past = {name: past for name, past in self._past.items() if name not in dropped}
            self._scan_due = self._clock()

    def _schedule(self) -> None:
        """Set when the next scan is due without a change."""
        expiring = [past.since for past in self._past.values() if past.expires]
        earliest = self._clock() + SHORTEST_PAUSE
        self._scan_due = max(min(expiring) + self._missing_device_ttl, earliest) if expiring else None

    def _missed_by_listing(self, scan: Scan, driver: Driver) -> Mapping[str, BinderDevice]:
        """Read each known binder device that the listing lacks, before it counts as missing.

        The kernel lists a binderfs in several steps (fs/libfs.c ``dcache_readdir``): a device that is recreated between
        two of them may be in none.
        """
        missing = [name.rpartition("/") for name in self.devices if name not in scan.devices]
        reader = DeviceReader(self._host, driver, self._directory)
        return {device.name: device for entry, _, file in missing for device in reader.read(entry, [file])}

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
        self._skipped = frozenset(skipped)


_HEALTHY = Past(None, None, 0.0)


def _aliases(found: Mapping[str, BinderDevice], before: Mapping[str, BinderDevice]) -> dict[str, str]:
    """Return names that lead to the file of another name, and why they are unusable: two containers would share it.

    The name that led to it ``before`` is usable, or one that was usable then: its device was recreated meanwhile.
    """
    existing = [device for device in found.values() if device.identity is not None]
    if len({device.file for device in existing}) == len(existing):
        return {}
    existing.sort(key=lambda device: (device is before.get(device.name), device.name in before, device.name))
    names = {device.file: device.name for device in existing}
    others = {device.name: names[device.file] for device in existing}
    return {name: f"it is the same file as {other}" for name, other in others.items() if other != name}


def track(
    before: Mapping[str, BinderDevice],
    past: Mapping[str, Past],
    found: Mapping[str, BinderDevice],
    now: float,
    missing_device_ttl: float,
    verify: Verify,
    probe: Callable[[BinderDevice], bool] | None = None,
) -> tuple[dict[str, BinderDevice], dict[str, Past]]:
    """Return devices and history after a scan that ``found`` these binder devices, given both ``before`` it.

    A binder device that vanished is missing for ``missing_device_ttl`` seconds and is then dropped. One that was
    missing or replaced for that time counts as new: its present file system becomes the expected one.

    ``probe`` returns whether the driver of a binder device responds, for those that their own pods may use otherwise.
    """
    expired = {name for name, had in past.items() if had.expires and now >= had.since + missing_device_ttl}
    known = {name: device for name, device in before.items() if name not in expired} if expired else before
    devices: dict[str, BinderDevice] = {}
    after: dict[str, Past] = {}
    for name, device in found.items():
        earlier, had = known.get(name), None if name in expired else past.get(name)
        if device is earlier and had is None and probe is None:
            devices[name] = device  # it is as healthy as before
            continue
        devices[name] = device
        expected = None if earlier is None or earlier.identity is None else earlier.identity.file_system
        if had is not None:
            expected = had.file_system
        reason = evaluate(device, verify, expected)
        if reason in {None, Reason.REPLACED} and probe is not None and not probe(device):
            reason = Reason.PROBE_FAILED
        if reason is not None:
            after[name] = Past(expected, reason, had.since if had is not None and had.reason is reason else now)
    for name, device in known.items():
        if name not in found:
            had = past.get(name)
            file_system = device.identity and device.identity.file_system if had is None else had.file_system
            since = had.since if had is not None and had.reason is Reason.MISSING else now
            devices[name] = BinderDevice(name, device.path, Kind.ABSENT)
            after[name] = Past(file_system, Reason.MISSING, since)
    return devices, after


def evaluate(device: BinderDevice, verify: Verify, file_system: FileSystem | None) -> Reason | None:
    """Return why a binder device is unhealthy, or None if it is healthy, unless a probe fails.

    ``file_system`` is the one it must be on (None: any).
    """
    kind, identity = device.kind, device.identity
    if identity is None:
        return Reason.MISSING
    if kind is Kind.OTHER or (kind is Kind.FILE and verify is not Verify.FILE):
        return Reason.NOT_A_DEVICE
    if (kind is Kind.STAND_IN or kind is Kind.FILE) and (verify is Verify.BINDER or verify is Verify.PROBE):
        return Reason.NOT_BINDER
    if file_system is not None and file_system != identity.file_system:
        return Reason.REPLACED
    return None
