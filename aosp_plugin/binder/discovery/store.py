"""The binder devices of one resource as of the last scan, and their history from scan to scan."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery import health, scanner
from aosp_plugin.binder.discovery.binder_device import TIMED_OUT
from aosp_plugin.binder.discovery.dependencies import Dependencies
from aosp_plugin.binder.discovery.health import Reason, Verify
from aosp_plugin.binder.discovery.history import TrackedDevices, expiries, track
from aosp_plugin.binder.discovery.names import merge_sorted, natural_sort
from aosp_plugin.binder.discovery.reader import DeviceReader
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver
from aosp_plugin.binder.errors import BinderfsError, DeviceDirectoryError, NotPermittedError, NotRespondingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Layout
    from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Found, Place
    from aosp_plugin.binder.discovery.dependencies import Affected
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

GUARDED_INTERVAL = 15.0
"""Seconds between two scans of binder devices on file systems that may hang (``driver.guard``). They are not watched:
inotify does not report changes by other hosts, and adding a watch may hang as well."""

SHORTEST_PAUSE = 1.0
"""Seconds from a scan to one that is due without a change. A dangling link expires again and again."""


class DeviceStore:
    """The binder devices of one resource.

    To be used in one thread at a time, except for ``reset`` and ``seconds_until_scan``, which any thread may call, and
    ``tracked``: it is replaced by a single assignment and never changed.
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
        self._path_prefix = self._directory.rstrip("/") + "/"
        self._layout = layout
        self._verify = verify
        self._missing_device_ttl = missing_device_ttl
        self._require_directory = require_directory
        self._clock = clock
        self.tracked = TrackedDevices(self._path_prefix)
        """The binder devices by name."""
        self._scanned = False
        self._skipped: set[str] = set()
        self._dependencies = Dependencies(host, self._directory, layout)
        self._driver = Driver()
        self._probe_denied = False
        self._resets_requested = 0
        self._resets_done = 0
        self._guarded: frozenset[str] = frozenset()
        self._directory_guarded = False
        self._expiries: Mapping[str, float] = {}
        self._scan_due: float | None = None
        self._renewed: frozenset[str] = frozenset()
        self.names: Sequence[str] = ()
        """Names of the binder devices in natural order, including missing ones until their TTL has expired."""

    def directories(self) -> frozenset[str]:
        """Return the directories to watch, as paths of this process, without those that may hang."""
        return self._dependencies.directories()

    def seconds_until_scan(self) -> float | None:
        """Return when a scan is due without a change, in seconds; None if none is."""
        if self._renewed:
            return 0.0
        due = self._scan_due
        return None if due is None else max(0.0, due - self._clock())

    def scan(self, changed: Collection[str] | None = None) -> Collection[str] | None:
        """Scan the host; if ``changed`` is given, only what depends on these files (paths of this process) or is due.

        Returns the names of the binder devices that were read, or None if all were. A missing device directory is an
        empty one, except for the first scan if it is required, because a wrong path is then the most likely cause. If
        the file system of the device directory is not responding, all binder devices time out.

        Raises DeviceDirectoryError, OSError, and NotRespondingError if no scan has succeeded yet.
        """
        resets = self._resets_requested
        reset = resets != self._resets_done
        driver = self._host.driver()
        try:
            names = None if changed is None or reset else self._affected(changed, driver)
            if names is None:
                self._scan_all(driver, reset=reset)
            else:
                self._scan_some(names, driver)
        except NotRespondingError:
            if not self._scanned:
                raise
            self._directory_hangs()
            names = None
        else:
            self._scanned = True
            self._resets_done = resets
            self._renewed = frozenset()
        self._schedule()
        return names

    def reset(self) -> None:
        """Make the next scan forget the history: it accepts the binder devices that it finds, and drops the others.

        To be called in one thread only, which may be another one than that of ``scan``.
        """
        self._resets_requested += 1

    def renew(self, names: Iterable[str]) -> None:
        """Read these binder devices at the next scan, and accept the file system that they are on by then.

        To be called when the caller has mounted a file system for them: otherwise they would count as replaced.
        """
        renewed = frozenset(names)
        self._renewed |= renewed
        self.tracked = self.tracked.on_any_file_system(renewed)

    def drop(self, names: Iterable[str]) -> None:
        """Forget binder devices that the caller has removed: they would count as missing."""
        dropped = frozenset(names)
        self.tracked = self.tracked.without(dropped)
        self.names = [name for name in self.names if name not in dropped]
        self._expiries = {name: expiry for name, expiry in self._expiries.items() if name not in dropped}

    def device(self, name: str) -> BinderDevice | None:
        """Return a binder device as of the last scan, or None if no scan has found it."""
        tracked = self.tracked
        return tracked.device(name) if name in tracked else None

    def _affected(self, changed: Collection[str], driver: Driver) -> set[str] | None:
        """Return the names of the binder devices to read: those that depend on these files, and those that are due.

        None if all may have changed. A binderfs that is mounted or unmounted changes the devices in it only, and its
        mount point is one of the files.
        """
        same = driver._replace(file_systems=self._driver.file_systems) == self._driver
        if not self._scanned or self._directory_guarded or not same:
            return None
        affected = self._dependencies.affected(changed)
        if affected is None:
            return None
        now = self._clock()
        expired = [name for name, expiry in self._expiries.items() if expiry <= now]
        return {*self._names_of(affected, driver), *expired, *self._guarded, *self._renewed}

    def _names_of(self, affected: Affected, driver: Driver) -> Iterator[str]:
        """Yield the names of the binder devices that are affected, and log the files that are skipped."""
        usable, skipped = scanner.usable_entries(affected.entries, self._layout)
        if skipped and self._layout.nested:
            skipped = scanner.directories_among(skipped, DeviceReader(self._host, driver, self._directory))
        self._log_skipped(skipped)
        for entry in usable:
            yield from self._layout.names_in(entry)
        for name in affected.names:
            entry = name.partition("/")[0]
            if name in self._layout.names_in(entry) and scanner.usable_entries([entry], self._layout)[0]:
                yield name

    def _scan_all(self, driver: Driver, *, reset: bool) -> None:
        try:
            scan = scanner.scan(self._host, driver, self._directory, self._layout, self.tracked.found)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self._scanned and self._require_directory:
                raise DeviceDirectoryError(f"cannot read the device directory {self._directory}: {error}") from error
            scan = scanner.Scan({}, {}, frozenset({self._directory}))
        links: set[str] = set()
        directory = self._host.process_path(self._host.resolve(self._directory, links))
        self._dependencies.replace(scan)
        self._skipped &= scan.skipped.keys()
        self._log_skipped(scan.skipped)
        names = [*scan.found]
        found = {**scan.found, **missed} if (missed := self._missed_by_listing(scan, driver)) else scan.found
        tracked = self._track(TrackedDevices(self._path_prefix) if reset else self.tracked, found)
        self._driver = driver
        files = (directory, *map(self._host.process_path, links))
        self._directory_guarded = any(map(self._host.may_hang, files))
        self._guarded = scan.may_hang
        if tracked.found is not self.tracked.found:
            self.names = names if len(tracked) == len(names) else natural_sort(list(tracked))
        self.tracked = tracked
        self._expiries = expiries(tracked, self._missing_device_ttl)

    def _directory_hangs(self) -> None:
        """Keep the binder devices, as those that timed out. Missing ones are still missing."""
        present = [name for name in self.tracked if self.tracked.reason(name) is not Reason.MISSING]
        self._directory_guarded = True
        self.tracked = self._track(self.tracked, dict.fromkeys(present, TIMED_OUT))
        self.names = natural_sort(list(self.tracked))
        self._expiries = expiries(self.tracked, self._missing_device_ttl)

    def _schedule(self) -> None:
        """Set when the next scan is due without a change."""
        now = self._clock()
        due = list(self._expiries.values())
        if self._guarded or self._directory_guarded:
            due.append(now + GUARDED_INTERVAL)
        self._scan_due = max(min(due), now + SHORTEST_PAUSE) if due else None

    def _scan_some(self, names: Collection[str], driver: Driver) -> None:
        """Read these binder devices only. The state of the others is kept."""
        self._driver = driver
        if not names:
            return
        reader = DeviceReader(self._host, driver, self._directory)
        before = self.tracked.some(names)
        after = self._track(before, reader.read_all(names))
        expired = before.keys() - after.keys()
        remaining = [name for name in self.names if name not in expired] if expired else self.names
        added = after.keys() - before.keys()
        tracked = self.tracked.replaced_by(before.keys(), after)
        self._dependencies.add(reader, names)
        self._guarded = (self._guarded - frozenset(names)) | reader.may_hang
        self.names = merge_sorted(remaining, added) if added else remaining
        self.tracked = tracked
        others = {name: expiry for name, expiry in self._expiries.items() if name not in names}
        self._expiries = {**others, **expiries(after, self._missing_device_ttl)}

    def _track(self, before: TrackedDevices, found: dict[str, Found]) -> TrackedDevices:
        def evaluate(place: Place, file_system: FileSystem | None) -> Reason | None:
            return health.evaluate(place, self._verify, file_system)

        probe = partial(health.evaluate_probe, self._probe) if self._verify is Verify.PROBE else None
        return track(before, found, self._clock(), self._missing_device_ttl, evaluate, probe)

    def _missed_by_listing(self, scan: scanner.Scan, driver: Driver) -> Mapping[str, Found]:
        """Read each known binder device that the listing lacks, before it counts as missing.

        The kernel lists a binderfs in several steps (fs/libfs.c ``dcache_readdir``): a device that is recreated between
        two of them may be in none.
        """
        missing = [name for name in self.tracked if name not in scan.found]
        if not missing:
            return {}
        reader = DeviceReader(self._host, driver, self._directory)
        found = reader.read_all(missing)
        self._dependencies.add(reader, found)
        return found

    def _probe(self, name: str) -> bool:
        """Return whether the driver of a device responds; assume so if this process may not open the device.

        Raises NotRespondingError.
        """
        try:
            version = self._host.call(
                binderfs.binder_version, self._host.process_path(self._host.resolve(self._path_prefix + name))
            )
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

    def _log_skipped(self, skipped: Mapping[str, str]) -> None:
        for name in sorted(skipped.keys() - self._skipped):
            LOG.warning("file skipped", extra={"file": ascii(name), "reason": skipped[name]})
        self._skipped |= skipped.keys()
