"""The configurations of the plugin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX, OTHER_PREFIX = "aosp_binder", "aosp_hwbinder"
RESOURCE, OTHER_RESOURCE = "aosp.io/binder", "aosp.io/hwbinder"


class Served(NamedTuple):
    """A resource in the model."""

    name: str = RESOURCE
    prefix: str = PREFIX
    variable: str = "BINDER_VISIBLE_DEVICES"
    """The environment variable that lists a container's binder devices."""
    size: int = 1
    """DeviceDirectory of a device."""
    replicas: int = 1

    def device_of(self, name: str) -> str | None:
        """Return the device of a binder device, without replica; None if it does not belong to this resource."""
        number = re.fullmatch(re.escape(self.prefix) + "([0-9]+)", name)
        return f"{self.prefix}{int(number[1]) - int(number[1]) % self.size}" if number else None

    def binder_devices_of(self, device: str) -> list[str]:
        """Return the names of a device's binder devices."""
        first = int(device.removeprefix(self.prefix))
        return [f"{self.prefix}{number}" for number in range(first, first + self.size)]

    def advertised(self, device: str) -> list[str]:
        """Return the IDs under which a device is advertised."""
        return [f"{device}::{number}" for number in range(self.replicas)] if self.replicas > 1 else [device]


class Setup(NamedTuple):
    """A configuration."""

    name: str
    served: tuple[Served, ...] = (Served(),)
    keys: Mapping[str, Any] = {}

    @property
    def by_cdi(self) -> bool:
        """Whether containers get CDI device names instead of devices."""
        return "cdi-cri" in self.keys.get("device_list", ())

    def text(self, keys: Mapping[str, Any]) -> str:
        """Return the configuration file with these additional keys."""
        resources: dict[str, Any] = {}
        if len(self.served) > 1:
            resources["resources"] = [
                {
                    "resource_name": served.name,
                    "device_prefix": served.prefix,
                    "replicas": served.replicas,
                    "visible_devices_env": served.variable,
                }
                | ({"sets": {"size": served.size}} if served.size > 1 else {})
                for served in self.served
            ]
        return yaml.safe_dump({"version": "v1", **keys, **self.keys, **resources})


SETUPS = (
    Setup("plain"),
    Setup("cdi", keys={"device_list": ["envvar", "cdi-cri"]}),
    Setup("two resources", (Served(), Served(OTHER_RESOURCE, OTHER_PREFIX, "HWBINDERS", size=2, replicas=2))),
)


def of_seed(seed: int) -> Setup:
    """Return the setup of a seed; consecutive seeds cycle through all setups."""
    return SETUPS[seed % len(SETUPS)]
