"""The history of binder devices from scan to scan. Functions of their arguments.

A healthy binder device has no history but the place where the last scan found it. ``Past`` objects exist for the
others only, so that a hundred thousand healthy ones cost little time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import ABSENT, binder_device
from aosp_plugin.binder.discovery.health import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, KeysView

    from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Found, Place

EXPIRING = frozenset({Reason.MISSING, Reason.REPLACED})
"""Reasons that end after ``missing_device_ttl``."""


class Past(NamedTuple):
    """The history of a binder device that is unhealthy, or that may be on another file system at the next scan."""

    file_system: FileSystem | None
    """File system on which it was healthy last. None before that: no container can have the device yet."""
    reason: Reason | None
    """None if it is healthy."""
    since: float
    """When the reason last changed, in seconds of the caller's clock."""


class TrackedDevice(NamedTuple):
    """A binder device as of the last scan, and why it is unhealthy."""

    device: BinderDevice
    reason: Reason | None
    """None if it is healthy."""


class TrackedDevices(Mapping[str, TrackedDevice]):
    """Binder devices by name, as of one scan. Immutable; for any thread."""

    __slots__ = ("_path_prefix", "found", "past")

    def __init__(
        self, path_prefix: str, found: Mapping[str, Found] | None = None, past: Mapping[str, Past] | None = None
    ) -> None:
        """Create the mapping. ``path_prefix`` is the device directory with a slash at the end."""
        self._path_prefix = path_prefix
        self.found: Mapping[str, Found] = {} if found is None else found
        """What the scan found, also for missing devices."""
        self.past: Mapping[str, Past] = {} if past is None else past
        """The history of those that have any. All others are healthy, and on the file system of their place."""

    def __getitem__(self, name: str) -> TrackedDevice:
        """Return a binder device. Raises KeyError."""
        return TrackedDevice(self.device(name), self.reason(name))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.found)

    def __len__(self) -> int:
        """Return the number of binder devices."""
        return len(self.found)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a binder device with this name."""
        return name in self.found

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self.found.keys()

    def device(self, name: str) -> BinderDevice:
        """Return a binder device without its health. Raises KeyError."""
        return binder_device(self._path_prefix, name, self.found[name])

    def reason(self, name: str) -> Reason | None:
        """Return why a binder device is unhealthy; None if it is healthy, and if there is none with this name."""
        past = self.past.get(name)
        return None if past is None else past.reason

    def unhealthy(self) -> dict[str, Reason]:
        """Return the reasons of the unhealthy binder devices, by name."""
        return {name: past.reason for name, past in self.past.items() if past.reason is not None}

    def places(self) -> list[Place]:
        """Return the places of all binder devices, most of them once."""
        return [*{id(found[0]): found[0] for found in self.found.values()}.values()]

    def with_state(self, found: Mapping[str, Found], past: Mapping[str, Past]) -> TrackedDevices:
        """Return binder devices of the same device directory."""
        return TrackedDevices(self._path_prefix, found, past)

    def some(self, names: Iterable[str]) -> TrackedDevices:
        """Return those of the binder devices that have one of these names."""
        found = {name: self.found[name] for name in names if name in self.found}
        past = {name: self.past[name] for name in found if name in self.past}
        return self.with_state(found, past)

    def without(self, names: Collection[str]) -> TrackedDevices:
        """Return the binder devices without those with these names."""
        found = {name: found for name, found in self.found.items() if name not in names} if names else self.found
        past = {name: past for name, past in self.past.items() if name not in names}
        return self.with_state(found, past)

    def replaced_by(self, before: Collection[str], after: TrackedDevices) -> TrackedDevices:
        """Return the binder devices with the state ``after`` a scan of those that were called ``before``."""
        found = {**self.found, **after.found}
        for name in before:
            if name not in after.found:
                del found[name]
        past = {name: past for name, past in self.past.items() if name not in before}
        return self.with_state(found, {**past, **after.past})

    def on_any_file_system(self, names: Iterable[str]) -> TrackedDevices:
        """Return the binder devices, of which these may be on another file system at the next scan."""
        renewed = {name: self.past.get(name, _HEALTHY)._replace(file_system=None) for name in names if name in self}
        return self.with_state(self.found, {**self.past, **renewed}) if renewed else self


_HEALTHY = Past(None, None, 0.0)


def track(
    before: TrackedDevices,
    found: dict[str, Found],
    now: float,
    missing_device_ttl: float,
    evaluate: Callable[[Place, FileSystem | None], Reason | None],
    probe: Callable[[str], Reason | None] | None = None,
) -> TrackedDevices:
    """Return the state after a scan that ``found`` these binder devices, given the state ``before`` it.

    A binder device that vanished is missing for ``missing_device_ttl`` seconds and is then dropped. One that was
    missing or replaced for that time counts as new: its present file system becomes the expected one.

    ``evaluate`` returns why the binder devices of a place are unhealthy if they must be on a file system. ``probe`` is
    called for those that are healthy otherwise. Missing ones are added to ``found``, which belongs to the result.
    """
    known = before.without([name for name, past in before.past.items() if _expired(past, now, missing_device_ttl)])
    known_found, known_past = known.found, known.past
    for name in known_found:
        if name not in found:
            found[name] = ABSENT
    past: dict[str, Past] = {}
    healthy: Place | None = None
    """A place whose devices are healthy, that of the last one."""
    for name, entry in found.items():
        place, earlier, had = entry[0], known_found.get(name), known_past.get(name)
        if earlier is not None and had is None and earlier[0] is not place and earlier[0] != place:
            had = _HEALTHY._replace(file_system=earlier[0].file_system)
        if had is None and (place is healthy or evaluate(place, None) is None):
            healthy = place
            if probe is None or (reason := probe(name)) is None:
                continue
            past[name] = Past(None if earlier is None else place.file_system, reason, now)
        else:
            had = had or _HEALTHY
            reason = evaluate(place, had.file_system) or (None if probe is None else probe(name))
            if reason is not None:
                past[name] = Past(had.file_system, reason, had.since if had.reason is reason else now)
    # A full scan makes new objects, also for what has not changed.
    return before.with_state(known_found if found == known_found else found, past)


def _expired(past: Past, now: float, missing_device_ttl: float) -> bool:
    return past.reason in EXPIRING and now >= past.since + missing_device_ttl


def expiries(tracked: TrackedDevices, missing_device_ttl: float) -> dict[str, float]:
    """Return when each binder device with a reason that expires is due, by name, in seconds of the caller's clock."""
    return {name: past.since + missing_device_ttl for name, past in tracked.past.items() if past.reason in EXPIRING}
