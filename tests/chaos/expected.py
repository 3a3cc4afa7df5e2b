"""A model of the devices that the kubelet must have, which shares no code with the plugin.

The model reads the directory. The plugin also remembers devices: a missing device stays listed as unhealthy, and a
device on another file system than before is unhealthy, because containers hold the old one. So the model remembers the
state of the last agreement with the plugin. It accepts both answers if both are right, as for a device that was created
and deleted between two scans.
"""

from __future__ import annotations

import contextlib
import enum
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tests.chaos.files import DeviceDirectory
    from tests.chaos.setups import Served

MISSING_DEVICE_TTL = 300.0
"""The configuration's ``missing_device_ttl``, in seconds."""

UNCERTAIN_AFTER = 240.0
"""Seconds after which a missing device may be dropped or not, because the plugin's time starts at its own scan."""


class Answer(enum.Enum):
    """The model's answer to a yes-or-no question."""

    NO = "no"
    YES = "yes"
    EITHER = "either"


class Expectation(NamedTuple):
    """The expected state of a binder device or a device."""

    listed: Answer
    healthy: Answer


_NOTHING = Expectation(Answer.NO, Answer.NO)


class Model:
    """The devices that one process of the plugin must report."""

    def __init__(self, served: Sequence[Served], devices: DeviceDirectory) -> None:
        self._served = served
        self._devices = devices
        self._file_systems: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        """The file systems that each name was on since the last agreement. The plugin may remember any of them."""
        self._unsure: set[str] = set()
        self._last_healthy: dict[str, float] = {}
        self._listed: set[str] = set()
        self._remounted = False
        self._may_have_forgotten = False
        self.named_in_spec: Callable[[], Collection[str]] | None = None
        """While the CDI spec cannot be written: what returns the devices in it. Others may be unhealthy."""

    def restarted(self) -> None:
        """Expect the plugin to remember nothing."""
        self._file_systems, self._last_healthy = {}, {}
        self._listed, self._unsure = set(), set()
        self._remounted = self._may_have_forgotten = False
        self._seen = {}
        self.observe()

    def observe(self) -> None:
        """Record the current state, which the plugin may see before the next fault changes it."""
        for name in self._devices.names():
            with contextlib.suppress(OSError):
                self._seen.setdefault(name, set()).add(self._devices.status(name).st_dev)

    def remounted(self) -> None:
        """Accept that names were on two file systems since the last agreement with the plugin."""
        self._remounted = True

    def may_have_forgotten(self) -> None:
        """Accept that the plugin drops its memory of devices at some time from now on."""
        self._may_have_forgotten = True

    def binder_device(self, name: str) -> Expectation:
        """Return the expected state of one name now."""
        path = os.path.join(self._devices.directory, name)
        try:
            status = self._devices.status(name)
        except OSError:
            return (
                Expectation(Answer.YES, Answer.NO)
                if os.path.islink(path)
                else Expectation(self._remembered(name), Answer.NO)
            )
        if stat.S_ISDIR(status.st_mode):
            return Expectation(self._remembered(name), Answer.NO)
        usable = stat.S_ISCHR(status.st_mode) or (stat.S_ISREG(status.st_mode) and self._devices.kind == "file")
        return Expectation(Answer.YES, self._healthy(name, status.st_dev) if usable else Answer.NO)

    def _healthy(self, name: str, file_system: int) -> Answer:
        known = self._file_systems.get(name)
        if known is None:
            moved = len(self._seen.get(name, set()) | {file_system}) > 1
            return Answer.EITHER if self._remounted or moved or name in self._unsure else Answer.YES
        if known == file_system:
            return Answer.YES if not (self._remounted and self._may_have_forgotten) else Answer.EITHER
        old = time.monotonic() - self._last_healthy[name] > UNCERTAIN_AFTER
        return Answer.EITHER if old or self._may_have_forgotten else Answer.NO

    def _remembered(self, name: str) -> Answer:
        if name not in self._listed or self._may_have_forgotten:
            return Answer.EITHER
        old = time.monotonic() - self._last_healthy.get(name, 0.0) > UNCERTAIN_AFTER
        return Answer.EITHER if old else Answer.YES

    def devices(self, served: Served) -> dict[str, Expectation]:
        """Return the expected devices of a resource, under all their advertised IDs."""
        states = {
            name: self.binder_device(name) for name in self._devices.ever | set(os.listdir(self._devices.directory))
        }
        devices = {device for name in states if (device := served.device_of(name)) is not None}
        expected = {
            device: _together([states.get(name, _NOTHING) for name in served.binder_devices_of(device)])
            for device in devices
        }
        if self.named_in_spec is not None:
            for device in devices - {*self.named_in_spec()}:
                if expected[device].healthy is Answer.YES:
                    expected[device] = expected[device]._replace(healthy=Answer.EITHER)
        return {identifier: expected[device] for device in devices for identifier in served.advertised(device)}

    def difference(self, served: Served, reported: Mapping[str, str]) -> str:
        """Return how the reported devices differ from the expected ones, or ""."""
        expected = self.devices(served)
        differences = sorted(_differences(expected, reported))
        if differences:
            return f"{served.name}: {len(differences)} devices differ: " + "; ".join(differences[:6])
        return ""

    def agree(self, reported: Mapping[str, Mapping[str, str]]) -> None:
        """Remember the plugin's state. ``reported`` are the devices of each resource, without differences."""
        now = time.monotonic()
        for served in self._served:
            for name in self._devices.ever | set(self._devices.names()):
                device = served.device_of(name)
                if device is not None:
                    health = reported[served.name].get(served.advertised(device)[0], "")
                    self._agree_on(name, health, now, alone=served.size == 1)
        self._remounted = self._may_have_forgotten = False
        self._seen = {}

    def _agree_on(self, name: str, health: str, now: float, *, alone: bool) -> None:
        expected = self.binder_device(name)
        if expected.listed is Answer.YES:
            self._listed.add(name)
        elif self._may_have_forgotten:
            self._listed.discard(name)
        if expected.healthy is Answer.NO:
            if self._may_have_forgotten or name not in self._file_systems:
                self._doubt(name)
            return
        file_system = self._devices.status(name).st_dev
        if expected.healthy is Answer.YES or health == "Healthy":
            self._file_systems[name] = file_system
            self._last_healthy[name] = now
            self._unsure.discard(name)
        elif not alone or self._file_systems.get(name, file_system) == file_system:
            self._doubt(name)

    def _doubt(self, name: str) -> None:
        """Accept that the plugin remembers another file system for a name, or none."""
        if self._file_systems.pop(name, None) is not None or self._remounted or name in self._seen:
            self._unsure.add(name)


def _together(states: Sequence[Expectation]) -> Expectation:
    """Return the state of a device: listed if one of its binder devices is, and healthy if all are."""
    listed = {state.listed for state in states}
    healthy = {state.healthy for state in states}
    return Expectation(
        next(answer for answer in (Answer.YES, Answer.EITHER, Answer.NO) if answer in listed),
        next(answer for answer in (Answer.NO, Answer.EITHER, Answer.YES) if answer in healthy),
    )


def _differences(expected: Mapping[str, Expectation], reported: Mapping[str, str]) -> Iterator[str]:
    for device in reported.keys() | expected.keys():
        listed, healthy = expected.get(device, _NOTHING)
        health = reported.get(device)
        if health is None:
            if listed is Answer.YES:
                yield f"{device} is missing"
        elif listed is Answer.NO:
            yield f"{device} is reported, but never existed"
        elif healthy is not Answer.EITHER and (health == "Healthy") is not (healthy is Answer.YES):
            yield f"{device} is reported as {health}"
