"""Names of binder devices, and the sets of them that form one device. All functions are pure."""

import abc
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

from aosp_plugin.binder.driver.binderfs import CONTROL_NAME

NaturalKey: TypeAlias = tuple[tuple[str | int, ...], str]
"""Sorts in natural order; see ``natural_key``."""

PHONE_BINDER_DEVICES = ("binder", "hwbinder", "vndbinder")
"""Names of a phone's binder devices, in its binderfs and below /dev in Android."""

PHONE_PREFIX = "phone"
"""The ID of a phone, which is also the name of its directory, is this and its number."""

MINORS_PER_PHONE = len(PHONE_BINDER_DEVICES) + 1
"""Minor numbers of the driver that a phone uses: one more for its binder-control."""

_REPLICA = re.compile(r"::\d+$")
_PHONE = re.compile(f"{PHONE_PREFIX}(0|[1-9][0-9]*)")

LONGEST_NAME = 63
"""Maximum number of characters of a device ID (comment on ``Device.ID`` in the kubelet's api.proto)."""

_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*\Z)")

_DIGITS = re.compile(r"([0-9]{1,999})")  # Python converts no more than 4,300


def natural_key(name: str) -> NaturalKey:
    """Return a sort key that orders aosp_binder9 before aosp_binder10. Only equal names have equal keys.

    Text and numbers alternate in the first part, so a comparison of two keys never compares text with a number. The
    second part, the name, orders aosp_binder01 and aosp_binder1.
    """
    parts: list[str | int] = list(_DIGITS.split(name))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return tuple(parts), name


def last_number(name: str) -> int | None:
    """Return the last number in a name; None if it has none."""
    match = _LAST_NUMBER.search(name)
    return int(match[0]) if match else None


def natural_sort(names: Sequence[str]) -> list[str]:
    """Sort by ``natural_key``; three times as fast if the names differ in their last number only."""
    prefixes = {name.rstrip("0123456789") for name in names}
    zero = prefixes.pop() + "0" if len(prefixes) == 1 else ""
    if zero and {name for name in names if name.startswith(zero)} <= {zero}:
        return sorted(sorted(names), key=len)
    return sorted(names, key=natural_key)


def name_problem(name: str) -> str | None:
    """Return why a file name is not usable as a device ID and in a container path, or None if it is.

    ``str.isprintable`` is false for control characters, for every white space except the ASCII space, and for the
    surrogates that represent bytes that are not UTF-8, which a protobuf string cannot carry.
    """
    if not name:
        return "the name is empty"
    if len(name) > LONGEST_NAME:
        return f"the name has {len(name)} characters; a device ID has at most {LONGEST_NAME}"
    if not name.isprintable() or " " in name:
        return "the name contains a space, a control character or bytes that are not UTF-8"
    if "/" in name or name in {".", ".."}:
        return "it is a path, not a name"
    if "," in name:
        return "the name contains a comma, which separates the names in a container's environment variable"
    return None


class DeviceSet(NamedTuple):
    """One device: the binder devices that one container gets together."""

    id: str
    members: tuple[str, ...]
    """Names of its binder devices, including missing ones, in the order in which a container gets them."""

    @property
    def numa_names(self) -> tuple[str, ...]:
        """The names whose last numbers select the NUMA node: the ID of a named set, otherwise all members."""
        return self.members if self.id == self.members[0] else (self.id,)

    @property
    def number(self) -> int:
        """The number that selects its spread device: the last one in the ID, or 0 if there is none.

        The IDs of sets of consecutive numbers are N, N + size, N + 2 * size and so on; their numbers are N / size, or
        all of them would have the same one of ``size`` spread devices.
        """
        number = last_number(self.id) or 0
        if len(self.numa_names) == 1 or last_number(self.members[1]) != number + 1:
            return number
        return number // len(self.members)


class Layout(abc.ABC):
    """The grouping of the binder devices of a resource into device sets."""

    files: Sequence[str] = ()
    """The names of the binder devices in the directory of each set; empty if sets have none."""

    @abc.abstractmethod
    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the ID of each set that has a member among ``names``, once, in natural order."""

    @abc.abstractmethod
    def set_of(self, set_id: str) -> DeviceSet:
        """Return the set with an ID that ``ids`` has returned. Raises ValueError for some other texts."""

    @abc.abstractmethod
    def set_id_in(self, entry: str) -> str | None:
        """Return what must be a valid ID in the name of a file in the device directory; None if it is in no set."""

    def problem(self, entry: str, id_suffix: str = "") -> str | None:
        """Return why a file whose name has an ID is in no set; None if it is in one."""
        return name_problem((self.set_id_in(entry) or "") + id_suffix)


class Single(Layout):
    """Each binder device whose name begins with ``prefix`` is a device."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the names."""
        return natural_sort([*names])

    def set_of(self, set_id: str) -> DeviceSet:
        """Return the set of the binder device with this name."""
        return DeviceSet(set_id, (set_id,))

    def set_id_in(self, entry: str) -> str | None:
        """Return the name if it begins with the prefix."""
        return entry if entry.startswith(self.prefix) else None


class Numbered(Single):
    """Sets of binder devices by number. A missing binder device does not change the other sets.

    Without a ``stride``, each ``size`` consecutive numbers from ``first`` on form a set. With a stride there are
    ``stride`` sets: N, N + stride, N + 2 * stride and so on (Kbox uses 3 devices, 120 apart). Other numbers, and
    numbers with leading zeros, belong to no set. ``size`` and ``stride`` are at least 1, ``first`` is at least 0.
    """

    def __init__(self, prefix: str, size: int, stride: int | None = None, first: int = 0) -> None:
        super().__init__(prefix)
        self.size, self.stride, self.first = size, stride, first

    def problem(self, entry: str, id_suffix: str = "") -> str | None:
        """Return why a file with the prefix is in no set: Android's /dev/binder has no number, for example."""
        return "its name has no number" if entry == self.prefix else super().problem(entry, id_suffix)

    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the IDs of the sets: the name of the first member of each, which may be missing."""
        matches = map(re.compile(re.escape(self.prefix) + "(0|[1-9][0-9]*)").fullmatch, names)
        firsts = self._firsts(int(match[1]) for match in matches if match)
        return [f"{self.prefix}{first}" for first in sorted(firsts)]

    def set_of(self, set_id: str) -> DeviceSet:
        """Return the set whose first member has this name."""
        first, step = int(set_id.removeprefix(self.prefix)), self.stride or 1
        members = [f"{self.prefix}{number}" for number in range(first, first + self.size * step, step)]
        return DeviceSet(set_id, tuple(members))

    def _firsts(self, numbers: Iterable[int]) -> set[int]:
        """Return the first numbers of the sets that contain ``numbers``."""
        if self.stride is None:
            return {number - (number - self.first) % self.size for number in numbers if number >= self.first}
        valid = range(self.first, self.first + self.size * self.stride)
        return {self.first + (number - self.first) % self.stride for number in numbers if number in valid}


class Named(Layout):
    """Sets with one binder device for each of ``names``: phone7/binder and phone7/hwbinder, or binder7 and hwbinder7.

    ``pattern`` is the name of a binder device with the placeholders {set} (one or more characters except "/") and
    {name}. If it contains a "/", each set has a directory of its own. ``pattern_problem`` describes invalid patterns.
    """

    def __init__(self, names: Sequence[str], pattern: str = "{set}/{name}") -> None:
        entry, slash, file = pattern.partition("/")
        self.files = [file.replace("{name}", name) for name in names] if slash else []
        self._affixes = _affixes(pattern, names)
        self._entry_affixes = _affixes(entry, names)

    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the IDs of the sets: the values of {set} that are valid IDs."""
        values = {value for name in names if (value := _placeholder_value(self._affixes, name))}
        return natural_sort([value for value in values if name_problem(value) is None])

    def set_of(self, set_id: str) -> DeviceSet:
        """Return the set with this value of {set}."""
        return DeviceSet(set_id, tuple([prefix + set_id + suffix for prefix, suffix in self._affixes]))

    def set_id_in(self, entry: str) -> str | None:
        """Return the value of {set}."""
        return _placeholder_value(self._entry_affixes, entry)


class PhoneLayout(Named):
    """The binder devices of phone N are phoneN/binder, phoneN/hwbinder and phoneN/vndbinder."""

    def __init__(self) -> None:
        super().__init__(PHONE_BINDER_DEVICES)

    def set_id_in(self, entry: str) -> str | None:
        """Return the file name if it is the ID of a phone."""
        return entry if phone_number(entry) is not None else None


def _affixes(pattern: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the text before and after {set} for each name."""
    before, _, after = pattern.partition("{set}")
    return [(before.replace("{name}", name), after.replace("{name}", name)) for name in names]


def _placeholder_value(affixes: Iterable[tuple[str, str]], text: str) -> str | None:
    for prefix, suffix in affixes:
        value = text[len(prefix) : len(text) - len(suffix)]
        if value and "/" not in value and text == prefix + value + suffix:
            return value
    return None


def pattern_problem(pattern: str, names: Sequence[str]) -> str | None:
    """Return why ``Named`` does not support this pattern and these names, at least one, or None if it does.

    Names must be unambiguous, or one binder device would be in two sets: with {set}{name}, 7hwbinder is the hwbinder of
    7 and the binder of 7hw.
    """
    if [pattern.count(part) for part in ("{set}", "{name}", "{", "}")] != [1, 1, 2, 2]:
        return "the pattern must contain {set} and {name} once each, and no other braces"
    directory, slash, file = pattern.partition("/")
    if slash and ("{set}" not in directory or "{name}" not in file or "/" in file):
        return "a / in the pattern must separate a directory with {set} from a file with {name}"
    for name in names:
        example = pattern.replace("{set}", "0").replace("{name}", name)
        for part in (name, *example.split("/")):
            problem = name_problem(part) or ("it is the control file of a binderfs" if part == CONTROL_NAME else None)
            if problem:
                return f"invalid device name {part!r}: {problem}"
    for (first, (a, b)), (second, (c, d)) in combinations(zip(names, _affixes(pattern, names), strict=True), 2):
        if (a.startswith(c) or c.startswith(a)) and (b.endswith(d) or d.endswith(b)):
            return f"the pattern is ambiguous for the names {first!r} and {second!r}"
    return None


def replica_ids(device_id: str, count: int) -> list[str]:
    """Return the IDs of the ``count`` replicas of a device; its own ID if there is one replica."""
    return [f"{device_id}::{replica}" for replica in range(count)] if count > 1 else [device_id]


def replicated_id(replica_id: str, count: int) -> str | None:
    """Return the ID of a replica's device, or None if ``replica_ids`` does not return such an ID."""
    if count == 1:
        return replica_id
    device_id, _, number = replica_id.rpartition("::")
    return device_id if device_id and number in map(str, range(count)) else None


def unreplicated(advertised_id: str) -> str:
    """Return the ID of a device, given that ID or the ID of a replica."""
    return _REPLICA.sub("", advertised_id)


def phone_id(number: int) -> str:
    """Return the ID of a phone."""
    return f"{PHONE_PREFIX}{number}"


def phone_number(device_id: str) -> int | None:
    """Return the number of a phone; None if this is not the ID of one."""
    match = _PHONE.fullmatch(device_id)
    return int(match[1]) if match else None


def binder_devices_of(phones: Iterable[str]) -> list[str]:
    """Return the names of the binder devices of phones."""
    return [f"{phone}/{name}" for phone in phones for name in PHONE_BINDER_DEVICES]


def is_phone(device_id: str) -> bool:
    """Return whether this is the ID of a phone."""
    return phone_number(device_id) is not None
