"""The configurations under which the plugin runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX, OTHER_PREFIX = "aosp_binder", "aosp_hwbinder"
RESOURCE, OTHER_RESOURCE = "aosp.io/binder", "aosp.io/hwbinder"


class Served(NamedTuple):
    """One resource, as the model knows it."""

    name: str = RESOURCE
    prefix: str = PREFIX
    variable: str = "BINDER_VISIBLE_DEVICES"
    """That tells a container which nodes it has."""
    size: int = 1
    """Nodes of a device."""
    replicas: int = 1

    def device_of(self, node: str) -> str | None:
        """Return the device that a node of this name belongs to, replicas aside; None: to none of this resource."""
        number = re.fullmatch(re.escape(self.prefix) + "(0|[1-9][0-9]{0,40})", node)
        if self.size == 1:
            return node if re.fullmatch(re.escape(self.prefix) + "[!-+.-~-]{0,40}", node) else None
        return f"{self.prefix}{int(number[1]) - int(number[1]) % self.size}" if number else None

    def nodes_of(self, device: str) -> list[str]:
        """Return the names of a device's nodes."""
        if self.size == 1:
            return [device]
        first = int(device.removeprefix(self.prefix))
        return [f"{self.prefix}{number}" for number in range(first, first + self.size)]

    def advertised(self, device: str) -> list[str]:
        """Return the IDs under which a device is told to the kubelet."""
        return [f"{device}::{number}" for number in range(self.replicas)] if self.replicas > 1 else [device]


class Setup(NamedTuple):
    """A configuration."""

    name: str
    served: tuple[Served, ...] = (Served(),)
    keys: Mapping[str, Any] = {}

    @property
    def by_cdi(self) -> bool:
        """Whether containers get names that a CDI spec explains, instead of nodes."""
        return "cdi-cri" in self.keys.get("device_list", ())

    def text(self, keys: Mapping[str, Any]) -> str:
        """Return the configuration file; ``keys`` are those that depend on the place."""
        several: dict[str, Any] = {}
        if len(self.served) > 1:
            several["resources"] = [
                {
                    "resource_name": one.name,
                    "device_prefix": one.prefix,
                    "replicas": one.replicas,
                    "visible_devices_env": one.variable,
                }
                | ({"sets": {"size": one.size}} if one.size > 1 else {})
                for one in self.served
            ]
        return yaml.safe_dump({"version": "v1", **keys, **self.keys, **several})


SETUPS = (
    Setup("plain"),
    Setup("sets of three", (Served(size=3),), {"sets": {"size": 3}}),
    Setup("two replicas", (Served(replicas=2),), {"replicas": 2}),
    Setup("strict isolation", keys={"isolation": "strict"}),
    Setup("cdi", keys={"device_list": ["envvar", "cdi-cri"]}),
    Setup(
        "two resources",
        (Served(), Served(OTHER_RESOURCE, OTHER_PREFIX, "HWBINDERS", size=2, replicas=2)),
    ),
)


def of_seed(seed: int) -> Setup:
    """Return the setup of a seed: as many seeds in a row as there are setups have each of them once."""
    return SETUPS[seed % len(SETUPS)]
