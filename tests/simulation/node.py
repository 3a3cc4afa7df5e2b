"""The object of the Node, and what the plugin writes there and about it: the startup taint, and Events."""

import asyncio
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kubelet_standin.apiserver.access import Received
from tests.simulation.api import NODE
from tests.simulation.outside import LASTING
from tests.simulation.processes import Process
from tests.simulation.settings import driver_of
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.config.values import Api
    from aosp_plugin.framework.apiserver.protocol import NODES
    from aosp_plugin.framework.conditions import SECOND_PLUGIN, Severity
    from aosp_plugin.report.node_reporter import SETTLED

if TYPE_CHECKING:
    from tests.simulation.world import World

PATH = f"{NODES}/{NODE}"
LOOK = 1.0
"""Seconds between two looks."""
SHOWN = (1.0, 10.0)
"""Seconds between two reports of the kubelet on the Node."""
PROMPT, LATE = 3.0, 240.0
"""Seconds from a cause to its Event or patch, at the most: if no request has failed, and after requests that failed."""
NOTICED = 15.0
"""Seconds from when a condition has lasted to its Event, at the most, if no request has failed."""
TROUBLE = 75.0
"""Seconds in which a request that failed delays others: the longest pause is 60 s."""
_CHANGE = re.compile(r"\d+ devices? of (\S+) (?:lost: .*|healthy now )\((.*?)(?: and \d+ others)?\)(?:;|$).*")


@dataclass
class Told:
    """What a process has told by Events, and what is true of it."""

    seen: dict[tuple[str, str, float], float] = field(default_factory=dict)
    """When a condition was there last, by resource, kind and begin."""
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    """When an Event told of the begin of a condition, whose end no Event has told, by resource and kind."""
    silent: dict[tuple[str, str], float] = field(default_factory=dict)
    """When no condition of such a kind was there last."""
    changed: dict[tuple[str, str], str] = field(default_factory=dict)
    """The reason of the last Event about each device, by resource and device."""
    states: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """When each device was unusable last, and when it was healthy last."""


class Node:
    """Follows one Node, and checks what processes of the plugin do with it."""

    def __init__(self, world: "World") -> None:
        self._world, self._api, self._now = world, world.api, world.host.monotonic
        self._key = world.settings.startup_taint
        self._told: dict[Process, Told] = {}
        self._due = 0.0
        self._is_there = True
        self.created = self._now()
        self._advertised: dict[str, float] = {}
        """When new pods could get a device of each resource or driver last."""
        self._shown: dict[str, float] = {}
        """Until when the Node had a device of each resource."""
        self._started: dict[Process, float] = {}
        self._revision = 0
        """That of the API server at the last look."""
        self._api.answered = self._answered
        self._register()

    def _register(self) -> None:
        """Create the Node as a kubelet does with ``--register-with-taints``."""
        taints = [{"key": key, "effect": "NoSchedule"} for key in ("example.com/other", self._key) if key]
        self._api.objects.create(NODES, {"metadata": {"name": NODE}, "spec": {"taints": taints}, "status": {}})
        self._is_there, self.created = True, self._now()
        self._shown.clear()

    def create_again(self) -> None:
        """Delete the Node; the kubelet, which starts again, creates it."""
        world = self._world
        world.stop_kubelet()
        if self._is_there:
            self._api.objects.delete(PATH)
            self._is_there = False
        world.host.later(world.rng.uniform(2.0, 4.0), world.start_kubelet)

    async def run(self) -> None:
        """Follow kubelet and plugins."""
        while True:
            self._look()
            await asyncio.sleep(LOOK)

    def _look(self) -> None:
        world, now = self._world, self._now()
        kubelet_answers = world.kubelet.running and not self._api.is_away
        self._started = {process: self._started.get(process, now) for process in world.daemons}
        if not self._is_there and kubelet_answers:
            self._register()
        if self._key and self._is_tainted():
            self._advertised |= dict.fromkeys([*self._given(), *self._given_since_look()], now)
            if now >= self._due and kubelet_answers:
                self._due = now + world.witnesses.uniform(*SHOWN)
                self._show()
        self._revision = self._api.store.revision
        if world.settings.node_events:
            self._told = {process: self._told.get(process, Told()) for process in world.daemons}
            for process, told in self._told.items():
                self._follow(process, told)
                if self._is_prompt():
                    for missing in self._untold_conditions(told):
                        world.host.violated(missing)

    def _given(self) -> list[str]:
        """Return the resources and drivers of which new pods can get a device."""
        kubelet = self._world.kubelet
        drivers = [each["spec"]["driver"] for each in self._api.slices() if each["spec"].get("devices")]
        return [*drivers, *(name for name in kubelet.resources if kubelet.healthy(name))]

    def _given_since_look(self) -> Iterator[str]:
        """Yield the drivers that have had slices since the last look, as the plugin may still believe."""
        for change in reversed(self._api.store.history):
            if change.revision <= self._revision:
                return
            if change.kind.name == "ResourceSlice" and change.object["spec"].get("devices"):
                yield change.object["spec"]["driver"]

    def _is_tainted(self) -> bool:
        return self._is_there and any(each["key"] == self._key for each in self._taints(self._api.objects.get(PATH)))

    @staticmethod
    def _taints(node: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = node["spec"].get("taints", [])
        return found

    def _show(self) -> None:
        """Report the devices on the Node."""
        node, kubelet = self._api.objects.get(PATH), self._world.kubelet
        allocatable = {name: str(len(kubelet.healthy(name))) for name in kubelet.resources}
        self._shown = {name: min(until, self._now()) for name, until in self._shown.items()}
        self._shown |= {name: math.inf for name, count in allocatable.items() if count != "0"}
        if node["status"].get("allocatable") != allocatable:
            self._api.objects.update(f"{PATH}/status", {**node, "status": {"allocatable": allocatable}})

    # -- conditions and devices as they are

    def _follow(self, process: Process, told: Told) -> None:
        service, now = self._world.daemons[process]._service, self._now()
        if service is None or not process.alive:
            return
        for name in ("", *service.resources):
            conditions = [each for each in service._conditions.of(name) if each.kind.severity is not Severity.NOTICE]
            told.seen |= {(name, each.kind.name, each.started): now for each in conditions}
        told.seen = {key: seen for key, seen in told.seen.items() if seen >= now - LATE}
        there = {key[:2] for key, seen in told.seen.items() if seen == now}
        told.silent |= {key: now for key in told.told if key not in there}
        for server in service.servers:
            for device in server.inventory.snapshot.devices.values():
                lost, healthy = told.states.get((server.resource_name, device.id), (now, -LATE))
                times = (lost, now) if device.healthy else (now, healthy)
                told.states[server.resource_name, device.id] = times
        known = {
            (server.resource_name, name) for server in service.servers for name in server.inventory.snapshot.devices
        }
        told.states |= {key: (now, healthy) for key, (_, healthy) in told.states.items() if key not in known}

    # -- what the plugin writes

    def _answered(self, process: Process, request: Received, answer: dict[str, Any]) -> None:
        """Check a request that has succeeded."""
        if request.location.kind.name == "Node" and request.verb != "get":
            self._patched(process)
        elif request.location.kind.name == "Event":
            told = self._told.setdefault(process, Told())
            self._follow(process, told)
            wrong = self._wrong(told, answer)
            self._world.host.log("event", reason=answer["reason"], message=answer["message"])
            if wrong:
                self._world.host.violated(f"Event: {answer['reason']}: {answer['message']}: {wrong}")

    def _patched(self, process: Process) -> None:
        """Check that only the startup taint was removed, and not too early."""
        change = self._api.store.history[-1]
        before, after = self._taints(change.previous), self._taints(change.object)
        if after != [each for each in before if each["key"] != self._key] or not self._key:
            self._world.host.violated(f"the plugin changes the Node's taints from {before} to {after}")
        self._advertised |= dict.fromkeys([*self._given(), *self._given_since_look()], self._now())
        service = self._world.daemons[process]._service
        assert service is not None
        is_known = self._is_prompt() and not self._world.kubelet.lost  # no plugin knows at once what a kubelet loses
        since = self._now() - (PROMPT if is_known else LATE)
        for resource in service.config.resources:
            name, is_plugin = resource.resource_name, resource.api is Api.DEVICE_PLUGIN
            if self._advertised.get(name if is_plugin else driver_of(name), -math.inf) < since:
                self._world.host.violated(f"the startup taint is removed, and new pods get no {name}")
            if is_plugin and self._shown.get(name, -math.inf) < since:
                self._world.host.violated(f"the startup taint is removed, and the Node has no {name}")

    def _is_prompt(self) -> bool:
        return self._now() > self._api.last_trouble + TROUBLE and not self._api.loses_events

    def _wrong(self, told: Told, event: dict[str, Any]) -> str:
        """Return why an Event is not true; empty if it is. Note what it tells."""
        now, delay = self._now(), PROMPT if self._is_prompt() else LATE
        if event["reason"] in {"DevicesLost", "DevicesRecovered"}:
            return self._wrong_devices(told, event, now - delay)
        about, _, _text = event["message"].partition(": ")
        kind = re.sub(r"(?<!^)(?=[A-Z])", "-", event["reason"].removesuffix("Ended")).lower()
        key = (about if "/" in about else "", kind)
        spells = [(began, seen) for (*each, began), seen in told.seen.items() if (*each,) == key]
        if event["reason"].endswith("Ended"):
            began = told.told.pop(key, None)
            if began is None:
                return "no Event has told of its begin"
            # If all that is there began later, it was away between two looks.
            is_new = all(start > began - delay for start, seen in spells if seen == now)
            return "" if is_new or told.silent.get(key, -LATE) >= began - delay else "it has not ended"
        if key in told.told:
            return "it was told before"
        told.told[key] = now
        if any(seen >= now - delay and seen - began >= LASTING - LOOK for began, seen in spells):
            return ""
        return f"it has not lasted: {spells}"

    @staticmethod
    def _wrong_devices(told: Told, event: dict[str, Any], since: float) -> str:
        match = _CHANGE.fullmatch(event["message"])
        assert match is not None, event["message"]
        keys = [(match[1], device) for device in match[2].split(", ")]
        again = [key for key in keys if told.changed.get(key) == event["reason"]]
        is_lost = event["reason"] == "DevicesLost"
        untrue = [key for key in keys if told.states.get(key, (0.0, 0.0))[0 if is_lost else 1] < since]
        told.changed |= dict.fromkeys(keys, event["reason"])
        return f"told before: {again}" if again else f"not true of {untrue}" if untrue else ""

    # -- what it should have written, after some time without a fault

    def untold(self) -> Iterable[str]:
        """Yield what Events lack, and a startup taint that should be gone."""
        world, now = self._world, self._now()
        told = self._told.get(world.process)
        if world.settings.node_events and told is not None:
            self._follow(world.process, told)
            yield from (
                f"no Event tells of the end of {key}" for key in told.told if told.silent.get(key, 0.0) >= now - LOOK
            )
            yield from self._untold_conditions(told)
            for (name, device), (lost, healthy) in told.states.items():
                if told.changed.get((name, device)) == ("DevicesLost" if healthy > lost else "DevicesRecovered"):
                    yield f"the last Event about {device} of {name} is {told.changed[name, device]}"
        names = {pool.name if pool.api is Api.DEVICE_PLUGIN else pool.driver for pool in world.settings.pools}
        is_known = self._started.get(world.process, now) > self.created or now > self.created + SETTLED + TROUBLE
        given = {name for name in self._given() if "/" in name or world.claims.usable(name)}
        if self._key and self._is_tainted() and is_known and names.issubset(given):
            yield "the startup taint is left"

    def _untold_conditions(self, told: Told) -> Iterator[str]:
        """Yield which conditions that are there now have lasted, and no Event tells of them."""
        now, delay = self._now(), NOTICED if self._is_prompt() else TROUBLE
        for (name, kind, began), seen in told.seen.items():
            lasts = seen == now and now - began > LASTING + delay
            if lasts and kind != SECOND_PLUGIN.name and (name, kind) not in told.told:
                yield f"no Event tells of {kind} of {name or 'the node'}"
