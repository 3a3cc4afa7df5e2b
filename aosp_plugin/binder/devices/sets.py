"""How nodes group into devices: functions of names.

Which names there are is ``scanner``'s work, what a single node is worth ``health``'s, and which free device a container
gets is ``preference``'s.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.discovery.names import name_problem, natural_sort
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DeviceSet(NamedTuple):
    """One device: the nodes that one container gets together."""

    id: str
    nodes: tuple[str, ...]
    """All that belong to it, the missing ones too, in the order in which a container gets them."""

    @property
    def numbered(self) -> tuple[str, ...]:
        """The names whose last numbers tell the NUMA node: what a named set is called, else all nodes."""
        return self.nodes if self.id == self.nodes[0] else (self.id,)


class Layout(Protocol):
    """Which nodes belong together."""

    def sets(self, names: Iterable[str]) -> list[DeviceSet]:
        """Return the sets that have a node among ``names``, each one once.

        They are in natural order of their IDs where ``names`` are in natural order.
        """


class Single:
    """Each node is a device of its own."""

    def sets(self, names: Iterable[str]) -> list[DeviceSet]:
        """Return a set for each name."""
        return [DeviceSet(name, (name,)) for name in names]


class Numbered(NamedTuple):
    """Nodes that belong together by their numbers, never by their place in a list: a missing one shifts no other.

    Without a ``stride``, ``size`` numbers in a row make a set, from ``first`` on and without end. With one there are
    ``stride`` sets, each of N, N + stride, N + 2 * stride and so on; Kbox has 3 nodes, 120 apart. Other numbers, and
    those with leading zeros, are in no set. ``size`` and ``stride`` are 1 or more, ``first`` is 0 or more.
    """

    prefix: str
    size: int
    stride: int | None = None
    first: int = 0

    def sets(self, names: Iterable[str]) -> list[DeviceSet]:
        """Return the sets; the ID of each is the name of its first node, whether that is there or not."""
        matches = map(re.compile(re.escape(self.prefix) + "(0|[1-9][0-9]*)").fullmatch, names)
        return [self._set(first) for first in sorted(self._firsts(int(match[1]) for match in matches if match))]

    def _firsts(self, numbers: Iterable[int]) -> set[int]:
        """Return the first numbers of the sets that ``numbers`` are in."""
        if self.stride is None:
            return {number - (number - self.first) % self.size for number in numbers if number >= self.first}
        known = range(self.first, self.first + self.size * self.stride)
        return {self.first + (number - self.first) % self.stride for number in numbers if number in known}

    def _set(self, first: int) -> DeviceSet:
        step = self.stride or 1
        nodes = [f"{self.prefix}{number}" for number in range(first, first + self.size * step, step)]
        return DeviceSet(nodes[0], tuple(nodes))


class Named:
    """Sets with a node for each of ``names``: binder and hwbinder in phone7, or binder7 and hwbinder7.

    ``pattern`` makes a node's name out of {set}, one or more characters but "/", and {name}; with a "/" in it, each
    set has a directory of its own. Raises ValueError with what ``pattern_problem`` says.
    """

    def __init__(self, names: Sequence[str], pattern: str = "{set}/{name}") -> None:
        problem = pattern_problem(pattern, names)
        if problem:
            raise ValueError(problem)
        entry, slash, file = pattern.partition("/")
        self.nested = bool(slash)
        self.files = tuple(file.replace("{name}", name) for name in names)  # in a directory of such a set
        self._affixes = _affixes(pattern, names)
        self._around_entry = _affixes(entry, names)

    def sets(self, names: Iterable[str]) -> list[DeviceSet]:
        """Return the sets; the ID of each is what {set} stands for. What can't be an ID makes no set."""
        found = {one for name in names if (one := _match(self._affixes, name))}
        ids = natural_sort([one for one in found if name_problem(one) is None])
        return [DeviceSet(one, tuple([before + one + behind for before, behind in self._affixes])) for one in ids]

    def set_at(self, entry: str) -> str | None:
        """Return what {set} stands for in a file of the device directory, or None: a directory where nested."""
        return _match(self._around_entry, entry)


def _affixes(pattern: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return what stands before and behind {set} for each name."""
    before, _, behind = pattern.partition("{set}")
    return [(before.replace("{name}", name), behind.replace("{name}", name)) for name in names]


def _match(around: Iterable[tuple[str, str]], text: str) -> str | None:
    for before, behind in around:
        found = text[len(before) : len(text) - len(behind)]
        if found and "/" not in found and text == before + found + behind:
            return found
    return None


def pattern_problem(pattern: str, names: Sequence[str]) -> str | None:
    """Say why ``Named`` can't take this pattern and these names; None if it can.

    The names must not be confused, or two containers would get one node: with {set}{name}, 7hwbinder is the
    hwbinder of 7 and the binder of 7hw.
    """
    if [pattern.count(part) for part in ("{set}", "{name}", "{", "}")] != [1, 1, 2, 2]:
        return "the pattern has to have {set} and {name}, each once, and no other brace"
    directory, slash, file = pattern.partition("/")
    if slash and ("{set}" not in directory or "{name}" not in file or "/" in file):
        return "a / in the pattern stands between a directory with {set} and a file with {name}"
    if not names:
        return "a set needs one name at least"
    for name in names:
        node = pattern.replace("{set}", "0").replace("{name}", name)
        for part in (name, *node.split("/")):
            problem = name_problem(part) or ("it makes nodes, and is none" if part == CONTROL_NAME else None)
            if problem:
                return f"{part!r} can't be a node: {problem}"
    for (one, (a, b)), (other, (c, d)) in combinations(zip(names, _affixes(pattern, names), strict=True), 2):
        if (a.startswith(c) or c.startswith(a)) and (b.endswith(d) or d.endswith(b)):
            return f"the pattern can't tell the names {one!r} and {other!r} apart"
    return None


def worst(members: Sequence[tuple[str, Reason | None]]) -> tuple[Reason, str] | None:
    """Say why a set can't be handed out, and which of its nodes are at fault; None if all are fit.

    ``members`` are its nodes in order, each with its reason: MISSING also where it was never seen. Where all are
    missing, as the only node of a set can be, so is the set.
    """
    reasons = {reason for _, reason in members if reason is not None}
    if not reasons:
        return None
    # As ``health.judge`` asks them: the answer to a question means something only where those before it went well.
    reason = min(reasons, key=list(Reason).index)
    at_fault = [name for name, found in members if found is reason]
    detail = f"{', '.join(at_fault)} {'is' if len(at_fault) == 1 else 'are'} {reason}"
    if reason is Reason.MISSING and len(at_fault) < len(members):
        reason = Reason.INCOMPLETE
    return reason, detail


def replica_ids(device_id: str, count: int) -> list[str]:
    """Return the IDs under which a device is given out ``count`` times; where that is once, its own."""
    return [f"{device_id}::{replica}" for replica in range(count)] if count > 1 else [device_id]


def split_replica(replica_id: str, count: int) -> tuple[str, int]:
    """Return the device and the number of the replica. Raises ValueError where ``replica_ids`` gives no such ID."""
    if count == 1:
        return replica_id, 0
    device_id, _, number = replica_id.rpartition("::")
    if not device_id or number not in map(str, range(count)):
        raise ValueError(f"{replica_id!r} is none of {count} replicas of a device")
    return device_id, int(number)
