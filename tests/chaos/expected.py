"""A model of the devices that the kubelet must have, which shares no code with the plugin.

The model reads the directory. The plugin also remembers devices: a missing device stays listed as unhealthy. So the
model remembers the last agreement with the plugin. It accepts both answers if both are right, as for a device that was
created and deleted between two scans.
"""

from __future__ import annotations

import enum
import os
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
        self._last_seen: dict[str, float] = {}
        """When the plugin agreed last that a name exists."""
        self._may_have_forgotten = False

    def restarted(self) -> None:
        """Expect the plugin to remember nothing."""
        self._last_seen = {}
        self._may_have_forgotten = False

    def may_have_forgotten(self) -> None:
        """Accept that the plugin drops its memory of devices at some time from now on."""
        self._may_have_forgotten = True

    def _binder_device(self, name: str) -> Expectation:
        """Return the expected state of one name now; a link without a target is listed."""
        path = os.path.join(self._devices.directory, name)
        if os.path.exists(path):
            return Expectation(Answer.YES, Answer.YES)
        return Expectation(Answer.YES if os.path.islink(path) else self._remembered(name), Answer.NO)

    def _remembered(self, name: str) -> Answer:
        if name not in self._last_seen or self._may_have_forgotten:
            return Answer.EITHER
        return Answer.EITHER if time.monotonic() - self._last_seen[name] > UNCERTAIN_AFTER else Answer.YES

    def devices(self, served: Served) -> dict[str, Expectation]:
        """Return the expected devices of a resource, under all their advertised IDs."""
        states = {
            name: self._binder_device(name) for name in self._devices.ever | set(os.listdir(self._devices.directory))
        }
        devices = {device for name in states if (device := served.device_of(name)) is not None}
        expected = {
            device: _together([states.get(name, _NOTHING) for name in served.binder_devices_of(device)])
            for device in devices
        }
        return {identifier: expected[device] for device in devices for identifier in served.advertised(device)}

    def difference(self, served: Served, reported: Mapping[str, str]) -> str:
        """Return how the reported devices differ from the expected ones, or ""."""
        expected = self.devices(served)
        differences = sorted(_differences(expected, reported))
        if differences:
            return f"{served.name}: {len(differences)} devices differ: " + "; ".join(differences[:6])
        return ""

    def agree(self) -> None:
        """Remember that the plugin has reported the devices that exist now."""
        if self._may_have_forgotten:
            self._last_seen = {}
        self._last_seen |= dict.fromkeys(self._devices.names(), time.monotonic())
        self._may_have_forgotten = False


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
