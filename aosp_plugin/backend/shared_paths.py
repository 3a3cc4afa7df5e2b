"""What containers get besides binder devices: shared mounts and devices, spread devices, and slices of devices.

A few devices of the host, such as GPUs, are spread over the devices of a resource: device number N has the known spread
device N mod K, where K is the number of known ones, in natural order. A lost one stays known: its devices are
unhealthy, and no other device moves. See ``known`` for when the devices are spread again.

Of numbered devices, such as loop devices, each device of a resource has a slice, which depends on nothing but numbers.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from aosp_plugin.binder.devices.patterns import PathSearch, is_pattern, may_overlap, parts
from aosp_plugin.binder.devices.preference import LAST_NUMA_NODE
from aosp_plugin.binder.devices.sets import natural_sort
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Resource, SliceDevices, shared_device, spread_device
from aosp_plugin.config.values import OWN_BINDERFS, shared_path
from aosp_plugin.framework.errors import ConfigError

LOG = logging.getLogger(__name__)


class Spread(NamedTuple):
    """The spread devices as of one scan. Immutable: shared by all threads."""

    known: tuple[str, ...] = ()
    """Paths of the host in natural order, including lost ones."""
    lost: frozenset[str] = frozenset()
    """Those of them that do not exist now."""
    numa_nodes: Mapping[str, int] = {}
    """The NUMA nodes of those that have one, according to the kernel."""
    limits: Mapping[str, int] = {}
    """The numbers of devices that have the same one at most, of those with such a limit."""

    def device(self, number: int) -> str:
        """Return the path of the spread device of device ``number``; empty if none is known."""
        return self.known[number % len(self.known)] if self.known else ""

    def numa_node(self, number: int) -> tuple[int, ...]:
        """Return the NUMA node of the spread device of device ``number``; empty if it has none."""
        numa_node = self.numa_nodes.get(self.device(number))
        return () if numa_node is None else (numa_node,)


class SharedFiles(NamedTuple):
    """What containers get besides binder devices, as of one scan. Immutable: shared by all threads."""

    mounts: frozenset[str] = frozenset()
    """The shared mounts that exist."""
    devices: tuple[tuple[str, str], ...] = ()
    """The shared devices that exist: paths on the host and in the container."""
    missing: tuple[str, ...] = ()
    """Paths and patterns that each container requires, and that no device of the host has."""
    spread: Spread = Spread()
    slices: tuple[SliceDevices, ...] = ()
    present: frozenset[str] = frozenset()
    """The paths of the host at which a shared or spread device is, or one of any slice."""
    sliced: Mapping[tuple[int, int], str] = {}
    """The paths of the files that match the pattern of a slice, by type and device number."""

    def of(self, number: int) -> tuple[str, ...]:
        """Return the paths of what device ``number`` has by its number: its spread device and its slices."""
        spread = filter(None, [self.spread.device(number)])
        return (*spread, *(path for devices in self.slices for path in devices.of(number)))

    def missing_of(self, number: int) -> list[str]:
        """Return those of these paths at which no device is."""
        return [path for path in self.of(number) if path not in self.present]


class SharedPaths:
    """Finds these files of one resource at each scan. To be used in the worker thread."""

    def __init__(self, host: Host, resource: Resource) -> None:
        """Create the object; the host is not accessed."""
        self._host = host
        self._mounts = {path for path, _ in map(shared_path, resource.shared_mounts)} - {OWN_BINDERFS}
        self._shared = [shared_device(item) for item in resource.shared_devices]
        spread = map(spread_device, resource.spread_devices)
        self._spread = {"/" + "/".join(parts(item.path)): item.per_device for item in spread}
        self._slices = resource.slice_devices
        self._search: PathSearch | None = None
        self._states: dict[str, frozenset[str]] = {}
        self._files = SharedFiles()

    def directories(self) -> frozenset[str]:
        """Return the directories in which a change may add or remove a file, as paths of this process.

        Before the first scan those that it will find, or all devices would be scanned again because of them.
        """
        search = self._search
        if search is None:
            search = PathSearch(self._host)
            for path in (*self._mounts, *self._keys()):
                self._find(path, search)
        return frozenset(search.directories)

    def scan(self, *, forget: bool = False) -> SharedFiles:
        """Find the files. ``forget`` drops lost spread devices.

        Logs once for each path that is missing, or is no device. Raises ConfigError at the first scan if the path of a
        device is a directory, which only a wrong configuration explains. Containers do not get another file, or a
        directory that replaces a device later: a program may have written to the path of a device that was missing, and
        that must not cost the node all its phones.
        """
        before, search = self._files.spread, PathSearch(self._host)
        mounts = frozenset(path for path in self._mounts if self._find(path, search))
        self._log_not_found("mounts", self._mounts - mounts)
        found, absent = self._find_devices(search)
        spread = self._spread_devices(found, () if forget else before.known)
        missing, present = self._missing(found, spread), frozenset[str]().union(*found.values())
        files = [file for devices in self._slices for file in found[devices.pattern].items()]
        sliced = {(stat.S_IFMT(status.st_mode), status.st_rdev): path for path, status in files}
        self._files = SharedFiles(mounts, self._shared_devices(found), missing, spread, self._slices, present, sliced)
        self._search = search
        self._log_not_found("devices", absent & {device.path for device in self._shared if not device.required})
        if spread != before:
            extra = {"paths": ",".join(spread.known), "missing": ",".join(sorted(spread.lost))}
            LOG.info("spread devices changed", extra=extra)
        return self._files

    def _find_devices(self, search: PathSearch) -> tuple[dict[str, dict[str, os.stat_result]], set[str]]:
        """Return the status of each device that each path or pattern has, and those without any file."""
        others, unprintable = set[str](), set[str]()
        keys = self._keys()
        found: dict[str, dict[str, os.stat_result]] = {path: {} for path in keys}
        absent = set()
        for path, key in keys.items():
            files = self._find(path, search)
            if not files:
                absent.add(path)
            for file, status in files.items():
                if not file.isprintable():
                    unprintable.add(ascii(file))
                elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                    found[path][file] = status
                elif self._search is None and stat.S_ISDIR(status.st_mode) and not is_pattern(path):
                    raise ConfigError(f"{key}: {path} is a directory, not a device: use shared_mounts")
                else:
                    others.add(file)
        for path in self._newly("others", others):
            LOG.warning("shared device is not a device, not passed to containers", extra={"path": path})
        for path in self._newly("unprintable", unprintable):
            LOG.warning("file skipped", extra={"file": path, "reason": "its path contains unprintable characters"})
        return found, absent

    def _keys(self) -> dict[str, str]:
        """Return the paths and patterns of devices, each with the key that has it."""
        shared = {device.path: "shared_devices" for device in self._shared}
        patterns = [devices.pattern for devices in self._slices]
        return shared | dict.fromkeys(self._spread, "spread_devices") | dict.fromkeys(patterns, "slice_devices")

    @staticmethod
    def _find(path: str, search: PathSearch) -> dict[str, os.stat_result]:
        """Return the status of the file at a path, or of each that matches a pattern, links followed."""
        files: dict[str, os.stat_result] = {}
        with contextlib.suppress(OSError):
            for candidate in search.find(path):
                with contextlib.suppress(OSError):
                    files[candidate] = search.status(candidate)
        return files

    def _shared_devices(self, found: Mapping[str, Iterable[str]]) -> tuple[tuple[str, str], ...]:
        """Return host path and container path of the shared devices; of several for one, the first."""
        devices: dict[str, str] = {}
        for device in self._shared:
            for path in found[device.path]:
                devices.setdefault(device.container_path or path, path)
        return tuple((path, container_path) for container_path, path in devices.items())

    def _missing(self, found: Mapping[str, Collection[str]], spread: Spread) -> tuple[str, ...]:
        """Return the paths and patterns that each container requires and that have no device."""
        required = [device.path for device in self._shared if device.required]
        missing = [path for path in (*required, *(() if spread.known else self._spread)) if not found[path]]
        for path in self._newly("required", [*missing, *spread.lost]):
            LOG.warning("required device not found", extra={"path": path})
        return tuple(missing)

    def _spread_devices(self, found: Mapping[str, Mapping[str, os.stat_result]], before: Collection[str]) -> Spread:
        """Return the spread devices, given those known ``before``. A lost one keeps its NUMA node."""
        present = {file: status for path in self._spread for file, status in found[path].items()}
        devices = known(before, present, [path for path in self._spread if not is_pattern(path)])
        numa_nodes = {path: node for path, node in self._files.spread.numa_nodes.items() if path in devices}
        for path, status in present.items():
            numa_nodes.pop(path, None)
            node = self._host.numa_node(status)
            if node is not None and node <= LAST_NUMA_NODE:
                numa_nodes[path] = node
        limits = {
            path: limit
            for pattern, limit in reversed(self._spread.items())
            for path in devices
            if limit is not None and may_overlap(path, pattern)
        }
        return Spread(devices, frozenset(devices) - present.keys(), numa_nodes, limits)

    def _log_not_found(self, kind: str, paths: Iterable[str]) -> None:
        for path in self._newly(f"no {kind}", paths):
            LOG.info("shared path not found, not mounted", extra={"path": path})

    def _newly(self, state: str, paths: Iterable[str]) -> list[str]:
        """Return those of the paths that are in this state that were not in it at the last call."""
        before, self._states[state] = self._states.get(state, frozenset()), frozenset(paths)
        return sorted(self._states[state] - before)


def known(before: Collection[str], present: Collection[str], fixed: Collection[str]) -> tuple[str, ...]:
    """Return the known spread devices in natural order: those found ``before`` or now, and those without wildcards.

    ``before`` is empty after a restart and after SIGHUP, so that lost ones are forgotten and the devices spread again.
    """
    return tuple(natural_sort([*{*before, *present, *fixed}]))
