"""Which devices the kubelet should know, and how: a model of the plugin that shares no code with it.

It looks at the directory itself. What the directory alone can't tell is what the plugin remembers: a node that is gone
stays as an unhealthy one, and one that stands on another file system than at first is none for containers that hold the
old one. So the model remembers what it last agreed on with the plugin, and where either answer would be right (a node
that came and went between two looks), it takes both.
"""

from __future__ import annotations

import enum
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.chaos.files import Nodes
    from tests.chaos.setups import Served

MISSING_DEVICE_TTL = 300.0
"""Seconds: the configuration's ``missing_device_ttl``."""

CLOSE_TO_IT = 240.0
"""Seconds after which it may be forgotten as well as not: the plugin's seconds begin when it sees something."""


class Answer(enum.Enum):
    """Of the model, to a question of yes and no."""

    NO = "no"
    YES = "yes"
    EITHER = "either"


class Seen(NamedTuple):
    """One node or device."""

    listed: Answer
    fit: Answer


_NOTHING = Seen(Answer.NO, Answer.NO)


class Model:
    """What one process of the plugin should tell."""

    def __init__(self, served: Sequence[Served], nodes: Nodes) -> None:
        self._served = served
        self._nodes = nodes
        self._file_systems: dict[str, int] = {}
        self._unsure: set[str] = set()
        self._last_fit: dict[str, float] = {}
        self._listed: set[str] = set()
        self._remounted = False
        self._may_have_forgotten = False

    def started_anew(self) -> None:
        """Take it that the plugin remembers nothing."""
        self._file_systems, self._last_fit = {}, {}
        self._listed, self._unsure = set(), set()
        self._remounted = self._may_have_forgotten = False

    def remounted(self) -> None:
        """Take it that names stood on two file systems since the model last agreed with the plugin."""
        self._remounted = True

    def may_have_forgotten(self) -> None:
        """Take it that the plugin was told to forget what was there before, and may have done so at any time since."""
        self._may_have_forgotten = True

    def node(self, name: str) -> Seen:
        """Say what the plugin should make of one name now."""
        path = os.path.join(self._nodes.directory, name)
        try:
            seen = os.stat(path)
        except OSError:
            return Seen(Answer.YES, Answer.NO) if os.path.islink(path) else Seen(self._remembered(name), Answer.NO)
        if stat.S_ISDIR(seen.st_mode):
            return Seen(self._remembered(name), Answer.NO)
        usable = stat.S_ISCHR(seen.st_mode) or (stat.S_ISREG(seen.st_mode) and self._nodes.kind == "file")
        return Seen(Answer.YES, self._fit(name, seen.st_dev) if usable else Answer.NO)

    def _fit(self, name: str, file_system: int) -> Answer:
        known = self._file_systems.get(name)
        if known is None:
            return Answer.EITHER if self._remounted or name in self._unsure else Answer.YES
        if known == file_system:
            return Answer.YES if not (self._remounted and self._may_have_forgotten) else Answer.EITHER
        old = time.monotonic() - self._last_fit[name] > CLOSE_TO_IT
        return Answer.EITHER if old or self._may_have_forgotten else Answer.NO

    def _remembered(self, name: str) -> Answer:
        if name not in self._listed or self._may_have_forgotten:
            return Answer.EITHER
        old = time.monotonic() - self._last_fit.get(name, 0.0) > CLOSE_TO_IT
        return Answer.EITHER if old else Answer.YES

    def devices(self, served: Served) -> dict[str, Seen]:
        """Return the devices of a resource, each under all IDs that the kubelet is told."""
        nodes = {name: self.node(name) for name in self._nodes.ever | set(os.listdir(self._nodes.directory))}
        devices = {device for name in nodes if (device := served.device_of(name)) is not None}
        seen = {device: _together([nodes.get(one, _NOTHING) for one in served.nodes_of(device)]) for device in devices}
        return {one: seen[device] for device in devices for one in served.advertised(device)}

    def difference(self, served: Served, told: Mapping[str, str]) -> str:
        """Say where what the kubelet was told is not what should be; empty: nowhere. Agrees with it where it is not."""
        expected = self.devices(served)
        found = list(_differences(expected, told))
        if found:
            return f"{served.name}: {len(found)} devices differ: " + "; ".join(sorted(found)[:6])
        return ""

    def agree(self, told: Mapping[str, Mapping[str, str]]) -> None:
        """Remember what the plugin must have seen, now that no resource differs: ``told`` is what of each."""
        now = time.monotonic()
        for served in self._served:
            for name in self._nodes.ever | set(self._nodes.names()):
                device = served.device_of(name)
                if device is not None:
                    health = told[served.name].get(served.advertised(device)[0], "")
                    self._agree_on(name, health, now, alone=served.size == 1)
        self._remounted = self._may_have_forgotten = False

    def _agree_on(self, name: str, health: str, now: float, *, alone: bool) -> None:
        seen = self.node(name)
        if seen.listed is Answer.YES:
            self._listed.add(name)
        elif self._may_have_forgotten:
            self._listed.discard(name)
        if seen.fit is Answer.NO:
            if self._may_have_forgotten:
                self._doubt(name)
            return
        file_system = os.stat(os.path.join(self._nodes.directory, name)).st_dev
        if seen.fit is Answer.YES or health == "Healthy":
            self._file_systems[name] = file_system
            self._last_fit[name] = now
            self._unsure.discard(name)
        elif not alone or self._file_systems.get(name, file_system) == file_system:
            self._doubt(name)

    def _doubt(self, name: str) -> None:
        """Note that the plugin may have another file system in mind for a name, or none."""
        if self._file_systems.pop(name, None) is not None or self._remounted:
            self._unsure.add(name)


def _together(nodes: Sequence[Seen]) -> Seen:
    """Return what a device of these nodes is: listed where one of them is, and fit where all are."""
    listed = {one.listed for one in nodes}
    fit = {one.fit for one in nodes}
    return Seen(
        next(answer for answer in (Answer.YES, Answer.EITHER, Answer.NO) if answer in listed),
        next(answer for answer in (Answer.NO, Answer.EITHER, Answer.YES) if answer in fit),
    )


def _differences(expected: Mapping[str, Seen], told: Mapping[str, str]) -> Iterator[str]:
    for device in told.keys() | expected.keys():
        listed, fit = expected.get(device, _NOTHING)
        health = told.get(device)
        if health is None:
            if listed is Answer.YES:
                yield f"{device} is not told"
        elif listed is Answer.NO:
            yield f"{device} is told, and never was"
        elif fit is not Answer.EITHER and (health == "Healthy") is not (fit is Answer.YES):
            yield f"{device} is told as {health}"
