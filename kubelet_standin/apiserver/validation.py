"""What kube-apiserver checks of a ResourceSlice, as far as drivers run into it.

The rules are those of pkg/apis/resource/validation/validation.go; the limits are those of a minor version, from
staging/src/k8s.io/api/resource/v1/types.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_DEVICES = 128
MAX_ATTRIBUTES = 32
MAX_VALUE = 64
MAX_IDENTIFIER = 32
MAX_LABEL = 63
MAX_SUBDOMAIN = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_POOL = re.compile(rf"{SUBDOMAIN.pattern}(/{SUBDOMAIN.pattern})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_NAME = re.compile(rf"({SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_NUMBER = r"(0|[1-9]\d*)"
_PRERELEASE = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRERELEASE}(\.{_PRERELEASE})*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_EFFECTS = ("NoSchedule", "NoExecute", "None")
_VALUES = ("bool", "int", "string", "version")
_SCOPES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


class Limits(NamedTuple):
    """Limits that differ between versions."""

    tainted_devices: int
    """Devices of a slice in which a device has taints."""
    taints: int
    """Taints of a device."""


def limits(minor: int) -> Limits:
    """Return the limits of Kubernetes 1.``minor``."""
    return Limits(128, 4) if minor <= 34 else Limits(64, 16)  # noqa: PLR2004 - changed in 1.35


def slice_causes(new: dict[str, Any], old: dict[str, Any] | None, limit: Limits) -> list[str]:
    """Return why a ResourceSlice is invalid, or may not replace another one; empty if it is valid."""
    spec = new["spec"]
    causes = [*_spec(spec), *_devices(spec.get("devices") or [], limit)]
    if old is not None:
        before = old["spec"]
        fixed = {
            "spec.pool.name": (spec.get("pool", {}).get("name"), before["pool"]["name"]),
            "spec.driver": (spec.get("driver"), before["driver"]),
            "spec.nodeName": (spec.get("nodeName"), before.get("nodeName")),
        }
        causes += [
            f'{path}: Invalid value: "{value}": field is immutable'
            for path, (value, other) in fixed.items()
            if value != other
        ]
    return causes


def _spec(spec: dict[str, Any]) -> Iterator[str]:
    pool = spec.get("pool") or {}
    yield from name_causes("spec.driver", spec.get("driver", ""), MAX_LABEL, SUBDOMAIN)
    yield from name_causes("spec.pool.name", pool.get("name", ""), MAX_SUBDOMAIN, _POOL)
    if pool.get("resourceSliceCount", 0) <= 0 or pool.get("generation", 0) < 0:
        yield "spec.pool: Invalid value"
    if sum(bool(spec.get(scope)) for scope in _SCOPES) != 1:
        yield f"spec: Required value: exactly one of {', '.join(f'`{scope}`' for scope in _SCOPES)} is required"
    if spec.get("nodeName"):
        yield from name_causes("spec.nodeName", spec["nodeName"], MAX_SUBDOMAIN, SUBDOMAIN)


def _devices(devices: list[dict[str, Any]], limit: Limits) -> Iterator[str]:
    most = limit.tainted_devices if any(device.get("taints") for device in devices) else MAX_DEVICES
    if len(devices) > most:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items"
        return
    names: set[str] = set()
    for number, device in enumerate(devices):
        path = f"spec.devices[{number}]"
        name = device.get("name", "")
        yield from name_causes(f"{path}.name", name, MAX_LABEL, _LABEL)
        if name in names:
            yield f'{path}.name: Duplicate value: "{name}"'
        names.add(name)
        yield from _attributes(path, device)
        taints = device.get("taints") or []
        if len(taints) > limit.taints or not all(map(_valid_taint, taints)):
            yield f"{path}.taints: Invalid value"


def _attributes(path: str, device: dict[str, Any]) -> Iterator[str]:
    attributes = device.get("attributes") or {}
    if len(attributes) + len(device.get("capacity") or {}) > MAX_ATTRIBUTES:
        yield f"{path}: Invalid value: the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
    for name, value in attributes.items():
        domain, slash, identifier = name.rpartition("/")
        if slash:
            yield from name_causes(f"{path}.attributes", domain, MAX_LABEL, SUBDOMAIN)
        yield from name_causes(f"{path}.attributes", identifier, MAX_IDENTIFIER, _IDENTIFIER)
        if not _valid_value(value):
            yield f"{path}.attributes[{name}]: Invalid value"


def _valid_value(value: dict[str, Any]) -> bool:
    given = {kind: value[kind] for kind in _VALUES if value.get(kind) is not None}
    texts = [each for each in given.values() if isinstance(each, str)]
    semver = given.get("version")
    return (
        len(given) == 1
        and (semver is None or _SEMVER.fullmatch(semver) is not None)
        and all(len(text.encode()) <= MAX_VALUE for text in texts)
    )


def _valid_taint(taint: dict[str, Any]) -> bool:
    return _LABEL_NAME.fullmatch(taint.get("key", "")) is not None and taint.get("effect") in _EFFECTS


def name_causes(path: str, name: str, most: int, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield why a name is invalid."""
    if not name:
        yield f"{path}: Required value"
    elif len(name) > most:
        yield f"{path}: Too long: may not be more than {most} bytes"
    elif not pattern.fullmatch(name):
        yield f'{path}: Invalid value: "{name}": must match {pattern.pattern}'
