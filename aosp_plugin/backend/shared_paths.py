"""What containers get besides binder devices: ``shared_mounts``, ``shared_devices`` and ``spread_devices``."""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.devices.numa import LAST_NUMA_NODE
from aosp_plugin.binder.devices.spread import Spread, known
from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.path_search import PathSearch
from aosp_plugin.binder.discovery.patterns import is_pattern, parts
from aosp_plugin.config import OWN_BINDERFS, shared_device, shared_path
from aosp_plugin.errors import ConfigError, NotRespondingError

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping

    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.health import Problem
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource

LOG = logging.getLogger(__name__)


class SharedFiles(NamedTuple):
    """What containers get besides binder devices, as of one scan. Immutable: shared by all threads."""

    mounts: frozenset[str] = frozenset()
    """The shared mounts that exist."""
    devices: tuple[tuple[str, str], ...] = ()
    """The shared devices that exist: paths on the host and in the container."""
    missing: tuple[str, ...] = ()
    """Paths and patterns that each container requires, and that no device of the host has."""
    spread: Spread = Spread()

    def problem(self, group: DeviceSet) -> Problem | None:
        """Return what a device lacks of these; None if it lacks nothing."""
        if not self.missing and not self.spread.lost:
            return None
        lost = self.spread.lost & {self.spread.device(group.number)}
        return health.requirement_missing([*self.missing, *lost])


class SharedPaths:
    """Finds these files of one resource at each scan. To be used in the worker thread, except for ``reset``."""

    def __init__(self, host: Host, resource: Resource) -> None:
        """Create the object; the host is not accessed."""
        self._host = host
        self._mounts = {path for path, _ in map(shared_path, resource.shared_mounts)} - {OWN_BINDERFS}
        self._shared = [shared_device(item) for item in resource.shared_devices]
        self._spread = ["/" + "/".join(parts(path)) for path in resource.spread_devices]
        self._search = PathSearch(host)
        self._mount_search = PathSearch(host)
        self._found: Mapping[str, Mapping[str, os.stat_result | None]] = {}
        self._numa_nodes: dict[tuple[int, int], int | None] = {}
        self._states: dict[str, frozenset[str]] = {}
        self._scanned = False
        self._resets_requested = 0
        self._resets_done = 0
        self.files = SharedFiles()
        """As of the last scan. Replaced by a single assignment."""

    def directories(self) -> frozenset[str]:
        """Return the directories in which a change may add or remove a file, as paths of this process.

        Before the first scan those that it will find, or all devices would be scanned again because of them.
        """
        if self._scanned:
            return self._search.directories() | self._mount_search.directories()
        search = PathSearch(self._host)
        for path in self._mounts:
            self._exists(path, search)
        for path in (*(device.path for device in self._shared), *self._spread):
            self._files(path, search)
        return search.directories()

    def reset(self) -> None:
        """Make the next full scan forget lost spread devices. To be called in one thread only."""
        self._resets_requested += 1

    def scan(self, changed: Collection[str] | None = None) -> SharedFiles:
        """Find the mounts, and the devices unless none of the ``changed`` files (paths of this process) concerns them.

        Returns the same object if nothing has changed. Logs once for each path that is missing, or is no device. Raises
        ConfigError at the first scan if the path of a device is a directory, which only a wrong configuration explains.
        Containers do not get another file, or a directory that replaces a device later: a program may have written to
        the path of a device that was missing, and that must not cost the node all its phones.
        """
        search = PathSearch(self._host)
        mounts = frozenset(path for path in self._mounts if self._exists(path, search))
        self._mount_search = search
        self._log_not_found("mounts", self._mounts - mounts)
        files = self.files._replace(mounts=mounts)
        if changed is None or not self._scanned or self._search.affected(changed):
            files = self._scan_devices(files)
            self._scanned = True
        if files.spread != self.files.spread:
            extra = {"paths": ",".join(files.spread.known), "missing": ",".join(sorted(files.spread.lost))}
            LOG.info("spread devices changed", extra=extra)
        if files != self.files:
            self.files = files
        return self.files

    def _scan_devices(self, before: SharedFiles) -> SharedFiles:
        resets = self._resets_requested
        if resets != self._resets_done:
            self._numa_nodes = {}
        absent = self._find_devices()
        devices: dict[str, str] = {}
        for device in self._shared:
            for path in self._found[device.path]:
                devices.setdefault(device.container_path or path, path)
        spread = self._spread_devices(() if resets != self._resets_done else before.spread.known)
        self._resets_done = resets
        required = [device.path for device in self._shared if device.required]
        missing = [path for path in (*required, *(() if spread.known else self._spread)) if not self._found[path]]
        for path in self._newly("required", [*missing, *spread.lost]):
            LOG.warning("required device not found", extra={"path": path})
        self._log_not_found("devices", absent & {device.path for device in self._shared if not device.required})
        shared = tuple((path, container_path) for container_path, path in devices.items())
        return before._replace(devices=shared, missing=tuple(missing), spread=spread)

    def _find_devices(self) -> set[str]:
        """Find the devices of each path and pattern. Returns those without any file."""
        search = PathSearch(self._host)
        absent, others, unprintable = set[str](), set[str](), set[str]()
        paths = {device.path: "shared_devices" for device in self._shared} | dict.fromkeys(
            self._spread, "spread_devices"
        )
        found: dict[str, dict[str, os.stat_result | None]] = {}
        for path, key in paths.items():
            found[path], files = {}, self._files(path, search)
            if not files:
                absent.add(path)
            for file, status in files.items():
                if not file.isprintable():
                    unprintable.add(ascii(file))
                elif status is None or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                    found[path][file] = status
                elif not self._scanned and stat.S_ISDIR(status.st_mode) and not is_pattern(path):
                    raise ConfigError(f"{key}: {path} is a directory, not a device: use shared_mounts")
                else:
                    others.add(file)
        for path in self._newly("others", others):
            LOG.warning("shared device is not a device, not passed to containers", extra={"path": path})
        for path in self._newly("unprintable", unprintable):
            LOG.warning("file skipped", extra={"file": path, "reason": "its path contains unprintable characters"})
        self._found, self._search = found, search
        return absent

    def _files(self, path: str, search: PathSearch) -> Mapping[str, os.stat_result | None]:
        """Return the status of each file at a path, or that matches a pattern.

        A file that does not respond counts as a device (None), or containers would lack it without a reason. If the
        directory of a pattern does not respond, the devices found before stay.
        """
        try:
            candidates = search.find(path)
        except NotRespondingError:
            return self._found.get(path, {})
        except OSError:
            return {}
        files: dict[str, os.stat_result | None] = {}
        for candidate in candidates:
            try:
                files[candidate] = search.status(candidate)
            except NotRespondingError:
                files[candidate] = None
            except OSError:
                continue
        return files

    def _spread_devices(self, before: Collection[str]) -> Spread:
        """Return the spread devices, given those known ``before``. A lost one keeps its NUMA node."""
        present = {file: status for path in self._spread for file, status in self._found[path].items()}
        devices = known(before, present, [path for path in self._spread if not is_pattern(path)])
        numa_nodes = {path: node for path, node in self.files.spread.numa_nodes.items() if path in devices}
        numbers = {_number(status) for status in present.values() if status is not None}
        self._numa_nodes = {number: node for number, node in self._numa_nodes.items() if number in numbers}
        for path, status in present.items():
            if status is not None:
                numa_nodes.pop(path, None)
                if (node := self._numa_node(status)) is not None:
                    numa_nodes[path] = node
        return Spread(devices, frozenset(devices) - present.keys(), numa_nodes)

    def _numa_node(self, status: os.stat_result) -> int | None:
        """Return the NUMA node of a device, which the kernel is asked for once until it is lost."""
        device = _number(status)
        if device not in self._numa_nodes:
            node = self._host.numa_node(status)
            self._numa_nodes[device] = node if node is not None and node <= LAST_NUMA_NODE else None
        return self._numa_nodes[device]

    def _exists(self, path: str, search: PathSearch) -> bool:
        """Return whether a file exists, links followed. One that does not respond counts as existing."""
        try:
            search.status(path)
        except NotRespondingError:
            return True
        except OSError:
            return False
        return True

    def _log_not_found(self, kind: str, paths: Iterable[str]) -> None:
        for path in self._newly(f"no {kind}", paths):
            LOG.info("shared path not found, not mounted", extra={"path": path})

    def _newly(self, state: str, paths: Iterable[str]) -> list[str]:
        """Return those of the paths that are in this state that were not in it at the last call."""
        before, self._states[state] = self._states.get(state, frozenset()), frozenset(paths)
        return sorted(self._states[state] - before)


def _number(status: os.stat_result) -> tuple[int, int]:
    """Return what identifies a device of the kernel as long as it exists."""
    return stat.S_IFMT(status.st_mode), status.st_rdev
