"""Attributes of devices in the form of the API server (staging/src/k8s.io/api/resource/v1/types.go ``Device``).

The API server refuses a whole slice because of one invalid attribute, so invalid ones are omitted here. They are not
truncated: a truncated value could equal that of another device, while a selector on a missing attribute fails visibly.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from aosp_plugin.framework.backend import Version
from aosp_plugin.framework.dra.names import is_subdomain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.framework.devices import Device

AttributeValue: TypeAlias = "bool | int | str | Version"

ID_ATTRIBUTE = "id"
"""The device's ID, whose name in a slice may differ from it."""

NUMA_ATTRIBUTE = "resource.kubernetes.io/numaNode"
"""The standard name from Kubernetes 1.37 (staging/src/k8s.io/dynamic-resource-allocation/deviceattribute), which
drivers of other devices publish too; older clusters accept it as any other name."""

MAX_ATTRIBUTES = 32
"""Of a device, ``ResourceSliceMaxAttributesAndCapacitiesPerDevice`` (resource/v1/types.go)."""

MAX_VALUE_LENGTH = 64
"""Bytes of a string or version, ``DeviceAttributeMaxValueLength`` (resource/v1/types.go)."""

MAX_NAME_LENGTH, MAX_DOMAIN_LENGTH = 32, 63
"""Characters, ``DeviceMaxIDLength`` and ``DeviceMaxDomainLength`` (resource/v1/types.go)."""

_INT64 = range(-(2**63), 2**63)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMERIC = r"(0|[1-9]\d*)"
_PRE_RELEASE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION = re.compile(
    rf"{_NUMERIC}\.{_NUMERIC}\.{_NUMERIC}(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


def typed_attributes(
    device: Device, attributes: Mapping[str, AttributeValue]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return a device's attributes as the API server expects them, and why others are omitted.

    The ID, and the NUMA node of a device that has exactly one, are added, and replace attributes of these names.
    """
    own: dict[str, AttributeValue] = {ID_ATTRIBUTE: device.id}
    if len(device.numa_nodes) == 1:
        own[NUMA_ATTRIBUTE] = device.numa_nodes[0]
    typed: dict[str, dict[str, Any]] = {}
    problems = []
    for name, value in {**own, **attributes, **own}.items():  # in this order, as the limit is for the last ones
        problem = _problem(name, value)
        if not problem and len(typed) == MAX_ATTRIBUTES:
            problem = f"a device has at most {MAX_ATTRIBUTES}"
        if problem:
            problems.append(f"attribute {name} is omitted: {problem}")
        else:
            typed[name] = _typed(value)
    return typed, problems


def _typed(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, Version):
        return {"version": str(value)}
    return {"string": value}


@functools.lru_cache(maxsize=4096, typed=True)  # most attributes are the same for many devices
def _problem(name: str, value: AttributeValue) -> str:
    """Return why the API server would refuse an attribute; empty if it would not."""
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > MAX_DOMAIN_LENGTH or not is_subdomain(domain)):
        return "the domain of its name is invalid"
    if len(identifier) > MAX_NAME_LENGTH or _IDENTIFIER.fullmatch(identifier) is None:
        return f"its name must be an identifier of at most {MAX_NAME_LENGTH} characters"
    if isinstance(value, int):
        return "" if value in _INT64 else "the number does not fit into 64 bits"
    length = len(value.encode(errors="surrogatepass"))
    if length > MAX_VALUE_LENGTH:
        return f"the value has {length} bytes; the limit is {MAX_VALUE_LENGTH}"
    if isinstance(value, Version) and _VERSION.fullmatch(value) is None:
        return "the value is not a semantic version"
    return ""
