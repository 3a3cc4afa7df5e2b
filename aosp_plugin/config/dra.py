"""Validation of ``api: dra`` with the other keys of a resource, and with other resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.config.messages import shown
from aosp_plugin.config.process import DEFAULTS
from aosp_plugin.config.values import Api
from aosp_plugin.errors import ConfigError
from aosp_plugin.framework.dra.names import driver_name, driver_name_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.config.keys import Setting


def validate_dra(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError if a resource with ``api: dra`` has a name or a key that DRA does not support."""
    api, name, replicas, strategies = (resource[key] for key in ("api", "resource_name", "replicas", "device_list"))
    if api.value is not Api.DRA:
        return
    if (problem := driver_name_problem(name.value)) is not None:
        raise ConfigError(
            f"{api.source}: dra does not support the resource name {shown(name.value)} ({name.source}): {problem}"
        )
    if replicas.value != 1:
        raise ConfigError(
            f"{replicas.source}: {replicas.value} replicas are not allowed with api: dra ({api.source}), with which "
            "pods that use the same ResourceClaim share its devices; allowed: 1"
        )
    if strategies.value != DEFAULTS["device_list"]:
        raise ConfigError(
            f"{strategies.source}: device_list has no effect with api: dra ({api.source}), with which containers get "
            "their devices by a CDI spec of their claim: remove one of the two keys, or set it for other resources only"
        )


def require_different_drivers(first: Mapping[str, Setting], second: Mapping[str, Setting], place: str) -> None:
    """Raise ConfigError if two resources have the same driver, as b.io/a and io/a.b do."""
    names = [resource["resource_name"] for resource in (first, second) if resource["api"].value is Api.DRA]
    if len(names) == 2 and driver_name(names[0].value) == driver_name(names[1].value):  # noqa: PLR2004 - both
        sources = "; ".join(dict.fromkeys(name.source for name in names))
        raise ConfigError(
            f"{place}: the names {names[0].value} and {names[1].value} both lead to the DRA driver "
            f"{driver_name(names[0].value)} ({sources}); give each its own"
        )
