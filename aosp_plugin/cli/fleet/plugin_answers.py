"""What plugins answer: ``/status``, or ``/metrics`` if only that is served on the pod's address. Everything is pure.

Fields that a plugin of another version does not have are unknown, and fields that it has besides are ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from aosp_plugin.cli.fleet.cluster import PluginAnswer, PluginDevice, PluginResource

if TYPE_CHECKING:
    from collections.abc import Iterator

# Lines such as aosp_plugin_devices{health="healthy",reason="",resource="aosp.io/phone"} 120.0
_SAMPLE = re.compile(r"^aosp_plugin_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Pod(Struct):
    namespace: str
    name: str


class _Device(Struct):
    id: str
    state: str = "unknown"
    reason: str = ""
    detail: str = ""
    pods: tuple[_Pod, ...] = ()
    since: float | None = None


class _Counts(Struct):
    healthy: int = 0
    allocated: int | None = None
    leaked: int | None = None


class _Driver(Struct):
    slices: int | None = None
    slices_confirmed: int | None = None


class _Resource(Struct):
    name: str
    counts: _Counts
    devices: tuple[_Device, ...]
    registered: bool | None = None
    problem: str = ""
    problem_since: float | None = None
    notice: str = ""
    kubelet_allocatable: int | None = None
    kubelet_published: int | None = None
    expected: int | None = None
    leaks_known: bool = False
    driver: _Driver | None = None


class _Known(Struct):
    known: bool = False


class _Report(Struct):
    resources: tuple[_Resource, ...]
    version: str = ""
    allocations: _Known = msgspec.field(default_factory=_Known)


def from_status(body: bytes) -> PluginAnswer:
    """Return what a status report says. Raises ValueError if it is none."""
    try:
        report = msgspec.json.decode(body, type=_Report)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a status report: {error}") from error
    allocations_known = report.allocations.known
    resources = tuple(_resource(each, allocations_known=allocations_known) for each in report.resources)
    return PluginAnswer("status", resources, report.version)


def _resource(resource: _Resource, *, allocations_known: bool) -> PluginResource:
    unhealthy: dict[str, int] = {}
    for device in resource.devices:
        if device.reason:
            unhealthy[device.reason] = unhealthy.get(device.reason, 0) + 1
    driver = resource.driver
    return PluginResource(
        name=resource.name,
        healthy=resource.counts.healthy,
        unhealthy=unhealthy,
        registered=resource.registered,
        problem=resource.problem,
        problem_since=resource.problem_since,
        notice=resource.notice,
        allocated=resource.counts.allocated if allocations_known else None,
        leaked=resource.counts.leaked if resource.leaks_known else None,
        kubelet_allocatable=resource.kubelet_allocatable,
        kubelet_published=resource.kubelet_published,
        expected=resource.expected,
        slices=driver.slices if driver else None,
        slices_confirmed=driver.slices_confirmed if driver else None,
        devices=tuple(
            PluginDevice(
                device.id,
                device.state,
                device.reason,
                device.detail,
                tuple((pod.namespace, pod.name) for pod in device.pods),
                device.since,
            )
            for device in resource.devices
        ),
    )


def from_metrics(body: bytes) -> PluginAnswer:
    """Return what the metrics say: numbers, but not which device has which pod. Raises ValueError if there are none."""
    text = body.decode(errors="replace")
    unhealthy: dict[str, dict[str, int]] = {}
    values: dict[tuple[str, str], int] = {}
    version = ""
    for name, labels, value in _samples(text):
        resource = labels.get("resource", "")
        if name == "build_info":
            version = labels.get("version", "")
        elif name == "devices" and labels.get("health") == "unhealthy":
            if value:
                unhealthy.setdefault(resource, {})[labels.get("reason", "")] = value
        else:
            values[name, resource] = value
    names = sorted(resource for name, resource in values if name == "devices")
    if not names and not version:
        raise ValueError("no metrics of the plugin")
    resources = tuple(_measured(name, values, unhealthy.get(name, {})) for name in names)
    return PluginAnswer("metrics", resources, version)


def _measured(name: str, values: dict[tuple[str, str], int], unhealthy: dict[str, int]) -> PluginResource:
    registered, others = values.get(("registered", name)), values.get(("other_plugins", name), 0)
    return PluginResource(
        name=name,
        healthy=values["devices", name],
        unhealthy=unhealthy,
        registered=None if registered is None else bool(registered),
        problem="" if registered is None or registered else "not registered with the kubelet",
        notice=f"{others} other plugins of this resource run on this node" if others else "",
        allocated=values.get(("devices_allocated", name)),
        leaked=values.get(("leaked_devices", name)),
        kubelet_allocatable=values.get(("kubelet_allocatable", name)),
        expected=values.get(("devices_expected", name)),
        slices=values.get(("slices_wanted", name)),
        slices_confirmed=values.get(("slices_confirmed", name)),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], int]]:
    for name, labels, value in _SAMPLE.findall(text):
        if name in _READ:
            try:
                number = int(float(value))
            except OverflowError as error:  # +Inf
                raise ValueError(f"aosp_plugin_{name} is {value}") from error
            yield name, dict(_LABEL.findall(labels)), number


_READ = frozenset(
    {
        "build_info",
        "devices",
        "devices_allocated",
        "devices_expected",
        "kubelet_allocatable",
        "leaked_devices",
        "other_plugins",
        "registered",
        "slices_confirmed",
        "slices_wanted",
    }
)
