"""Device records: the files behind the device IDs of each resource that a plugin serves on this host, or served.

The kubelet knows the devices of pods by the names of resources and devices. The meaning of a name depends on the
configuration at the start of the pod: since then, a resource may have been renamed, or its devices may be in another
directory or in other sets. So each process records which files of the host its devices are, before it offers them. The
records of all processes show which device of the host a pod has, and which devices other processes offer.

The records are in a subdirectory of the kubelet's directory for device plugins, which every plugin has. A kubelet that
starts removes sockets from it, and before 1.25 all other files, but no directories
(pkg/kubelet/cm/devicemanager/manager.go ``CleanupPluginDirectory``). Only root can write there.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.backend import file_stem

DIRECTORY = "aosp-plugin"
"""The name of the directory."""

Paths = Mapping[str, list[str]]
"""The sorted paths of the files of the host that belong to one device alone, by its ID without replicas."""


class DeviceRecord(msgspec.Struct, frozen=True):
    """The files behind the device IDs of one resource."""

    resource: str
    since: int
    """When the process began to offer the devices, in nanoseconds of the monotonic clock."""
    devices: dict[str, list[str]]
    """The paths of each device, and its paths in earlier configurations until no pod has it."""
    cdi_dirs: list[str]
    """The host's directories of CDI specs that processes of the resource have been configured with."""
    main: str
    """The first resource of the process that served it last: the successor of that process has the same one."""
    by_plugin: bool = False
    """Whether pods may have devices through the device plugin API. Claims have records of their own."""


class OtherRecord(NamedTuple):
    """The record of a resource that this process does not serve."""

    record: DeviceRecord
    is_served: bool
    """Whether another process serves the resource now."""


class DeviceRecords:
    """The records of this host. Blocks; for one thread."""

    def __init__(self, kubelet_dir: str, cdi_dir: str, main: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """``kubelet_dir`` is the kubelet's directory for device plugins. It is not accessed.

        ``cdi_dir`` and ``main`` are those of this process, see ``DeviceRecord``.
        """
        self._directory = os.path.join(kubelet_dir, DIRECTORY)
        self._cdi_dir = cdi_dir
        self.main = main
        self._clock = clock
        self._locks: dict[str, int] = {}
        self.own: dict[str, DeviceRecord] = {}
        """The records of the resources that this process serves, by resource."""
        self.written: dict[str, DeviceRecord | None] = {}
        """What their files had at the last ``write``, by resource; None if nothing."""
        self._settled: dict[tuple[str, bool], tuple[Paths, Collection[str] | None, bool, tuple[int, int]]] = {}
        """Arguments of ``write`` that leave a file as it is, and its identity, by resource and whether users are
        known: with 10,000 devices, it takes 60 ms to compare them again."""

    def write(self, resource: str, devices: Paths, used: Collection[str] | None, *, by_plugin: bool) -> None:
        """Record the devices of a resource that this process serves, unless the file has them. Raises OSError.

        Former paths of an ID are kept if pods have the device. ``used`` has the IDs of their devices; None if they are
        unknown. ``by_plugin``: pods have devices through the device plugin API; otherwise, none has, unless the file
        says so and ``used`` is unknown.
        """
        atomic_file.make_directory(self._directory, 0o700)
        key, path = (resource, used is None), self._path(resource)
        if not self._has_lock(resource):
            self._begin(resource)
        elif self._settled.get(key) == (devices, used, by_plugin, _identity(path)):
            return
        before, written = self.own[resource], _read(path)
        others = before if written is None else written
        former = _merged(before.devices, others.devices)
        kept = {name: paths for name, paths in former.items() if used is None or name in used}
        directories = sorted({*before.cdi_dirs, *others.cdi_dirs})
        perhaps = by_plugin or (used is None and (before.by_plugin or others.by_plugin))
        record = DeviceRecord(resource, before.since, _merged(devices, kept), directories, self.main, by_plugin=perhaps)
        self.own[resource], self.written[resource] = record, written
        if record != written:
            atomic_file.replace(path, msgspec.json.encode(record))
        self.written[resource] = record
        if identity := _identity(path):
            self._settled[key] = devices, used, by_plugin, identity

    def others(self) -> list[OtherRecord]:
        """Return the records of the resources that this process does not serve. Raises OSError.

        A record that a crash of the host has damaged is ignored: no container has survived the crash.
        """
        found = []
        for name in sorted(self._names()):
            record = _read(os.path.join(self._directory, name)) if name.endswith(".json") else None
            if record is not None and record.resource not in self._locks:
                with self._exclusive(record.resource) as unserved:
                    found.append(OtherRecord(record, is_served=not unserved))
        return found

    def remove(self, record: DeviceRecord) -> bool:
        """Remove the record of a resource of which no pod has a device; return whether it was removed. Raises OSError.

        It stays if a process serves the resource now, or has changed the record. The lock file always stays, because
        another process may be about to lock it.
        """
        with self._exclusive(record.resource) as locked:
            path = self._path(record.resource)
            return locked and _read(path) == record and atomic_file.remove(path)

    def close(self) -> None:
        """Tell other processes that this one no longer offers its devices. The records stay."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()
        self.own.clear()

    def _names(self) -> list[str]:
        """Return the names of the files of records; none before the first record of this host.

        Raises OSError, also if the kubelet's directory is missing: it may be back in a moment, with the records.
        """
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            os.stat(os.path.dirname(self._directory))
            return []

    def _begin(self, resource: str) -> None:
        """Show other processes that this one serves the resource.

        If two processes serve the resource, as in a rolling update, the earlier one has begun to offer its devices.
        """
        if (lost := self._locks.pop(resource, None)) is not None:
            os.close(lost)
        with self._exclusive(resource) as unserved:
            pass
        descriptor = os.open(self._lock_path(resource), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks[resource] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        before = self.own.get(resource) or _read(self._path(resource)) or DeviceRecord(resource, 0, {}, [], self.main)
        began = self._clock() if unserved and resource not in self.own else before.since
        self.own[resource] = msgspec.structs.replace(before, since=began, cdi_dirs=[*before.cdi_dirs, self._cdi_dir])

    def _has_lock(self, resource: str) -> bool:
        """Return whether other processes see that this one serves the resource: the directory may be removed.

        An error may have ended ``_begin`` between the lock and the record: it is to begin again.
        """
        descriptor = self._locks.get(resource) if resource in self.own else None
        with contextlib.suppress(FileNotFoundError):
            return descriptor is not None and os.path.samestat(os.fstat(descriptor), os.stat(self._lock_path(resource)))
        return False

    @contextlib.contextmanager
    def _exclusive(self, resource: str) -> Iterator[bool]:
        """Keep other processes from beginning to serve a resource; yield False if a process serves it already.

        Each process that serves a resource holds a shared lock until it ends.
        """
        try:
            descriptor = os.open(self._lock_path(resource), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield True
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def _path(self, resource: str) -> str:
        return os.path.join(self._directory, _file_name(resource))

    def _lock_path(self, resource: str) -> str:
        return os.path.join(self._directory, f"{file_stem(resource)}.lock")


def _merged(first: Paths, second: Paths) -> dict[str, list[str]]:
    """Return all paths of each device, sorted. Of 10,000 devices, few have others than before."""
    merged = {**second, **first}
    for name, paths in second.items():
        if merged[name] != paths:
            merged[name] = sorted({*merged[name], *paths})
    return merged


def _identity(path: str) -> tuple[int, int] | None:
    """Return what distinguishes a file from one that replaces it; None if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _read(path: str) -> DeviceRecord | None:
    """Return the record in a file; None if the file is missing, or has anything but the record of its resource."""
    try:
        with open(path, "rb") as file:
            record = msgspec.json.decode(file.read(), type=DeviceRecord)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if os.path.basename(path) == _file_name(record.resource) else None


def _file_name(resource: str) -> str:
    return f"{file_stem(resource)}.json"
