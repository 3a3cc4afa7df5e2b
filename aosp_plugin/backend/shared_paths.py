"""What containers get besides binder devices: shared mounts and devices, spread devices, and slices of devices.

Of numbered devices, such as loop devices, each device of a resource has a slice, which depends only on its number.

Of each item of ``spread_devices``, such as GPUs, device number N has the known spread device N mod K, where K is the
number of known spread devices, in natural order. Items with devices of the same hardware, such as the cards and the
render nodes of GPUs, are ``paired``. A spread device that is lost stays known: its devices are unhealthy, and no other
device moves. A restart and SIGHUP forget lost ones.
"""

import contextlib
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.patterns import PathSearch, is_pattern, parts
from aosp_plugin.binder.devices.preference import LAST_NUMA_NODE
from aosp_plugin.binder.devices.sets import natural_sort
from aosp_plugin.binder.driver.host import TRANSIENT_ERRORS, Host
from aosp_plugin.config.keys import Resource, SliceDevices, SpreadDevice, shared_device, spread_device
from aosp_plugin.config.values import OWN_BINDERFS, has_placeholder, placeholder_pattern, shared_path
from aosp_plugin.framework.errors import ConfigError

LOG = logging.getLogger(__name__)


class Selected(NamedTuple):
    """A device of the host that a container gets by the number of its device."""

    path: str
    container_path: str
    variable: str = ""
    """The variable of the container with the container path; empty if there is none."""


class SpreadItem(NamedTuple):
    """An item of ``spread_devices`` as of one scan. Immutable: shared by all threads."""

    device: SpreadDevice
    known: Mapping[str, str] = {}
    """The hardware of each known device by its path, lost ones included; empty if it is unknown."""
    paths: tuple[str, ...] = ()
    """The paths in use, in the order of the numbers of the devices that have them."""

    def selected(self, number: int) -> Selected:
        """Return the spread device of device ``number``. At least one must be in use."""
        path = self.paths[number % len(self.paths)]
        return Selected(path, self.device.container_path or path, self.device.env)


class Spread(NamedTuple):
    """The spread devices as of one scan. Immutable: shared by all threads."""

    items: tuple[SpreadItem, ...] = ()
    """The items with a device in use."""
    lost: frozenset[str] = frozenset()
    """The paths in use that do not exist now."""
    numa_nodes: Mapping[str, int] = {}
    """The NUMA nodes of spread devices by path, according to the kernel; absent without one."""

    @property
    def paths(self) -> list[str]:
        """The paths in use."""
        return [path for item in self.items for path in item.paths]

    def of(self, number: int) -> list[Selected]:
        """Return the spread devices of device ``number``, one of each item."""
        return [item.selected(number) for item in self.items]

    def limits(self, number: int) -> dict[str, int]:
        """Return the ``per_device`` of the spread devices of device ``number`` by path, if they have one."""
        return {
            item.selected(number).path: item.device.per_device
            for item in self.items
            if item.device.per_device is not None
        }

    def numa_node(self, number: int) -> tuple[int, ...]:
        """Return the NUMA node of the first spread device of device ``number`` that has one; empty if none has."""
        return next(((self.numa_nodes[path],) for path, *_ in self.of(number) if path in self.numa_nodes), ())


class SharedFiles(NamedTuple):
    """What containers get besides binder devices, as of one scan. Immutable: shared by all threads."""

    mounts: frozenset[str] = frozenset()
    """The shared mounts that exist, including the mounts of single devices."""
    devices: tuple[tuple[str, str], ...] = ()
    """The shared devices that exist: paths on the host and in the container."""
    missing: tuple[str, ...] = ()
    """Paths and patterns that each container requires, and at which there is no device."""
    spread: Spread = Spread()
    slices: tuple[SliceDevices, ...] = ()
    present: frozenset[str] = frozenset()
    """The paths at which there is a shared or spread device, or a device of a slice."""
    sliced: Mapping[tuple[int, int], str] = {}
    """The paths of the files that match the pattern of a slice, by type and device number."""

    def of(self, number: int) -> tuple[Selected, ...]:
        """Return the spread devices and the slices of device ``number``."""
        return (*self.spread.of(number), *(Selected(path, path) for path in self.sliced_of(number)))

    def sliced_of(self, number: int) -> list[str]:
        """Return the paths in the slices of device ``number``, which no other device has."""
        return [path for devices in self.slices for path in devices.of(number)]

    def missing_of(self, number: int) -> list[str]:
        """Return the paths of the spread devices and slices of device ``number`` at which there is no device."""
        return [path for path, *_ in self.of(number) if path not in self.present]


class SharedPaths:
    """Finds the ``SharedFiles`` of one resource at each scan. To be used in the worker thread."""

    def __init__(self, host: Host, resource: Resource) -> None:
        """Create the object; the host is not accessed."""
        self._host = host
        mounts = [path for path, _ in map(shared_path, resource.shared_mounts)]
        self._mounts = [path for path in mounts if not has_placeholder(path) and path != OWN_BINDERFS]
        self._own_mounts = {placeholder_pattern(path): path for path in mounts if has_placeholder(path)}
        self._shared = [shared_device(item) for item in resource.shared_devices]
        self._spread = {
            "/" + "/".join(parts(item.path)): SpreadItem(item) for item in map(spread_device, resource.spread_devices)
        }
        """The items of ``spread_devices`` as of the last scan, by path or pattern."""
        self._slices = resource.slice_devices
        self._search: PathSearch | None = None
        self._states: dict[str, frozenset[str]] = {}
        self._files = SharedFiles()

    def directories(self) -> frozenset[str]:
        """Return the directories in which a change may add or remove a file, as paths of this process.

        Before the first scan they are looked for already, or all devices would be scanned again because of them.
        """
        search = self._search
        if search is None:
            search = PathSearch(self._host)
            for path in (*self._mounts, *self._own_mounts, *self._keys()):
                self._find(path, search)
        return frozenset(search.directories)

    def scan(self, *, forget: bool = False) -> SharedFiles:
        """Find the files. ``forget`` drops lost spread devices.

        Logs once for each path that is missing or is not a device. Raises ConfigError at the first scan if the path of
        a device is a directory, which only a wrong configuration explains. Later, a file or directory in place of a
        device is not passed to containers: a program may have written to the path of a missing device, and that must
        not cost the node all its phones.
        """
        before, search = self._files.spread, PathSearch(self._host)
        mounts = frozenset(path for path in self._mounts if self._find(path, search))
        self._log_not_found("mounts", {*self._mounts} - mounts)
        mounts |= self._find_own_mounts(search)
        found = self._find_devices(search)
        spread = self._spread_devices(found, forget=forget)
        missing, present = self._missing(found, spread), frozenset[str]().union(*found.values())
        files = [file for devices in self._slices for file in found[devices.pattern].items()]
        sliced = {(stat.S_IFMT(status.st_mode), status.st_rdev): path for path, status in files}
        self._files = SharedFiles(mounts, self._shared_devices(found), missing, spread, self._slices, present, sliced)
        self._search = search
        if spread != before:
            unused = {path for item in self._spread.values() for path in item.known}.difference(spread.paths)
            names = {"paths": spread.paths, "missing": sorted(spread.lost), "unused": natural_sort([*unused])}
            LOG.info("spread devices changed", extra={key: ",".join(paths) for key, paths in names.items()})
        return self._files

    def _find_own_mounts(self, search: PathSearch) -> frozenset[str]:
        """Return the mounts of single devices that exist.

        A mount behind a link below the configured directory does not count: a program that may write only there would
        choose which files of the host a container gets.
        """
        found, links = set[str](), set[str]()
        for pattern, path in self._own_mounts.items():
            depth = len(parts(path[: path.index("{")].rpartition("/")[0]))
            for file in self._find(pattern, search):
                names = parts(file)
                places = ("/" + "/".join(names[:length]) for length in range(depth + 1, len(names) + 1))
                with contextlib.suppress(OSError):  # it is gone again
                    (links if any(map(self._is_link, places)) else found).add(file)
        for path in self._newly("links", links):
            LOG.warning("mount of a device is a link, not passed to containers", extra={"path": path})
        return frozenset(found)

    def _is_link(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        return stat.S_ISLNK(self._host.lstat(f"{self._host.resolve(directory)}/{name}").st_mode)

    def _find_devices(self, search: PathSearch) -> dict[str, dict[str, os.stat_result]]:
        """Return the status of the devices at each path or pattern, and log what is none."""
        found: dict[str, dict[str, os.stat_result]] = {}
        others = set[str]()
        for path, key in self._keys().items():
            files = self._find(path, search)
            if self._search is None and not is_pattern(path) and any(map(_is_directory, files.values())):
                raise ConfigError(f"{key}: {path} is a directory, not a device: use shared_mounts")
            # A path that is no text cannot be told to the kubelet.
            found[path] = {file: status for file, status in files.items() if file.isprintable() and _is_device(status)}
            others |= files.keys() - found[path].keys()
        for path in self._newly("others", others):
            shown = path if path.isprintable() else ascii(path)
            LOG.warning("shared device is not a device, not passed to containers", extra={"path": shown})
        optional = {device.path for device in self._shared if not device.required}
        self._log_not_found("devices", {path for path in optional if not found[path]} - others)
        return found

    def _keys(self) -> dict[str, str]:
        """Return the paths and patterns of devices, each with its configuration key."""
        shared = {device.path: "shared_devices" for device in self._shared}
        patterns = [devices.pattern for devices in self._slices]
        return shared | dict.fromkeys(self._spread, "spread_devices") | dict.fromkeys(patterns, "slice_devices")

    @staticmethod
    def _find(path: str, search: PathSearch) -> dict[str, os.stat_result]:
        """Return the status of each file at a path or matching a pattern, links followed.

        Raises OSError if descriptors or memory are exhausted.
        """
        files: dict[str, os.stat_result] = {}
        try:
            candidates = search.find(path)
        except OSError as error:
            if error.errno in TRANSIENT_ERRORS:
                raise
            return files
        for candidate in candidates:
            with contextlib.suppress(OSError):
                files[candidate] = search.status(candidate)
        return files

    def _shared_devices(self, found: Mapping[str, Iterable[str]]) -> tuple[tuple[str, str], ...]:
        """Return host path and container path of the shared devices; of several for one container path, the first."""
        devices: dict[str, str] = {}
        for device in self._shared:
            for path in found[device.path]:
                devices.setdefault(device.container_path or path, path)
        return tuple((path, container_path) for container_path, path in devices.items())

    def _missing(self, found: Mapping[str, Mapping[str, os.stat_result]], spread: Spread) -> tuple[str, ...]:
        """Return the paths and patterns that each container requires, and at which there is no device."""
        required = [device.path for device in self._shared if device.required]
        missing = [path for path in required if not found[path]]
        missing += [path for path, item in self._spread.items() if not item.paths]
        for path in self._newly("required", [*missing, *spread.lost]):
            LOG.warning("required device not found", extra={"path": path})
        return tuple(missing)

    def _spread_devices(self, found: Mapping[str, Mapping[str, os.stat_result]], *, forget: bool) -> Spread:
        """Return the spread devices. A lost one keeps hardware and NUMA node, unless ``forget`` is set."""
        present = {file: status for path in self._spread for file, status in found[path].items()}
        known = []
        for path, item in self._spread.items():
            fixed = {} if is_pattern(path) else {path: ""}  # it selects the same devices before it appears
            now = {file: self._host.hardware(status) for file, status in found[path].items()}
            known.append({**fixed, **({} if forget else item.known), **now})
        for (path, item), own, paths in zip([*self._spread.items()], known, paired(known), strict=True):
            self._spread[path] = item._replace(known=own, paths=paths)
        spread = Spread(tuple(item for item in self._spread.values() if item.paths))
        used = {*spread.paths}
        numa_nodes = {path: node for path, node in self._files.spread.numa_nodes.items() if path in used}
        for path in sorted(used & present.keys()):
            numa_nodes.pop(path, None)
            node = self._host.numa_node(present[path])
            if node is not None and node <= LAST_NUMA_NODE:
                numa_nodes[path] = node
        return spread._replace(lost=frozenset(used - present.keys()), numa_nodes=numa_nodes)

    def _log_not_found(self, kind: str, paths: Iterable[str]) -> None:
        for path in self._newly(f"no {kind}", paths):
            LOG.info("shared path not found, not mounted", extra={"path": path})

    def _newly(self, state: str, paths: Iterable[str]) -> list[str]:
        """Return the paths in a state that were not in it at the last call."""
        before, self._states[state] = self._states.get(state, frozenset()), frozenset(paths)
        return sorted(self._states[state] - before)


def paired(known: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return the devices in use of each item of ``spread_devices``, in the order of the numbers that have them.

    ``known`` has the hardware of the devices of each item by path, empty if it is unknown. Items that share hardware
    use the same number of devices, so that the same device number gets devices of the same hardware. Their order is the
    natural order of the first such item. Hardware without a device in every such item is left out: a BMC has a card and
    no render node, for example, and no container gets its card together with another GPU.
    """
    keyed = [dict(_keyed(paths)) for paths in known]
    used: list[tuple[str, ...]] = [()] * len(keyed)
    for together in _connected([{hardware for hardware in paths.values() if hardware} for paths in known]):
        first, *others = [keyed[item] for item in together]
        common = [key for key in first if all(key in other for other in others)]
        for item in together:
            used[item] = tuple(keyed[item][key] for key in common)
    return used


def _connected(hardware: Sequence[set[str]]) -> list[list[int]]:
    """Return the positions of the items that share hardware, directly or through others, in ascending order."""
    groups: list[tuple[set[str], list[int]]] = []
    for item, own in enumerate(hardware):
        sharing = [group for group in groups if not own.isdisjoint(group[0])]
        groups = [group for group in groups if own.isdisjoint(group[0])]
        items = sorted([item, *(each for _, members in sharing for each in members)])
        groups.append((own.union(*(shared for shared, _ in sharing)), items))
    return [items for _, items in groups]


def _keyed(paths: Mapping[str, str]) -> Iterator[tuple[tuple[str, int | str], str]]:
    """Yield the devices of an item in natural order, each with its hardware and its position on that hardware.

    A device of unknown hardware has its path in place of the position.
    """
    counts = Counter[str]()
    for path in natural_sort([*paths]):
        hardware = paths[path]
        yield (hardware, counts[hardware] if hardware else path), path
        counts[hardware] += 1


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)


def _is_directory(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)
