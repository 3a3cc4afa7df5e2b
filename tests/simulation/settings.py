"""The configuration of a simulated node: what a seed begins with, and what its operator changes."""

import functools
import json
import random
from dataclasses import dataclass
from typing import Any

from kubelet_standin import KubeletVersion
from tests.simulation.containers import CDI_DIRECTORIES
from tests.simulation.kubelet import DIRECTORY, POD_RESOURCES
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.config.values import Api

FILE = "/etc/aosp-plugin/config.yaml"
HOST_BINDERFS = "/run/aosp-binderfs/host"
SPREAD = ("/dev/dri/renderD128", "/dev/dri/renderD129")
SLICE = 2
"""Loop devices of each phone that has any."""
DEVICES = 4
"""Binder devices that are found."""
MOST = 4
"""Phones of a resource, at the most."""
TAINT = "aosp.io/starting"
"""The startup taint, if the plugin is to remove any."""
TTL = 30.0
"""Seconds for which a missing or replaced device is remembered."""

_LISTS = (("envvar", "volume-mounts"), ("envvar", "volume-mounts"), ("envvar", "cdi-cri"), ("cdi-annotations",))


NAMES = {
    "binder": ("aosp.io/binder", "example.com/node"),
    "phone": ("aosp.io/phone", "example.com/handset"),
    "tablet": ("aosp.io/tablet", "example.com/slate"),
}
LOOPS = {"phone": "loop", "handset": "loop", "tablet": "ploop", "slate": "ploop"}


@functools.cache
def driver_of(name: str) -> str:
    """Return the name of the DRA driver of a resource."""
    domain, _, name = name.partition("/")
    return f"{name}.{domain}"


@dataclass
class Pool:
    """A resource of the configuration. Its devices on the host stay the same when its name or its API changes."""

    name: str
    other_name: str
    api: Api
    directory: str = ""
    """That of its phones; empty if its devices are found."""
    other_directory: str = ""
    count: int = DEVICES
    """Phones, or binder devices that are found."""
    size: int = 1
    """Binder devices of a device that is found."""
    replicas: int = 1
    device_list: tuple[str, ...] = _LISTS[0]
    spreads: bool = False
    per_device: int | None = None
    slices: bool = False
    is_requested: bool = False
    """Whether a provisioner mounts the phones, as long as their API is that of device plugins."""

    @property
    def has_provisioner(self) -> bool:
        """Whether the plugin mounts no phone itself."""
        return self.is_requested and self.api is Api.DEVICE_PLUGIN

    @property
    def driver(self) -> str:
        """The name of the driver, with DRA."""
        return driver_of(self.name)

    def devices(self) -> dict[str, frozenset[str]]:
        """Return the devices, each with the paths on the host that one tenant has."""
        return _devices(self.directory, self.count, self.size)

    def offered(self) -> dict[str, frozenset[str]]:
        """Return those of the devices that have room on their spread device: new pods may get them."""
        room = len(SPREAD) * (self.per_device or MOST) if self.spreads else MOST
        return dict([*self.devices().items()][:room])

    def advertised(self, device: str) -> set[str]:
        """Return the IDs of a device in the kubelet."""
        is_replicated = self.replicas > 1 and self.api is Api.DEVICE_PLUGIN
        return {f"{device}::{number}" for number in range(self.replicas)} if is_replicated else {device}

    def entry(self) -> dict[str, Any]:
        """Return the resource as it is in the configuration file."""
        kind = self.name.partition("/")[2]
        entry: dict[str, Any] = {"resource_name": self.name, "api": self.api}
        if self.directory:
            entry["phones"] = {"count": self.count, "directory": self.directory}
        elif self.size > 1:
            entry["sets"] = {"size": self.size}
        if self.spreads:
            entry["spread_devices"] = [{"path": "/dev/dri/renderD*", "per_device": self.per_device}]
        if self.slices:
            entry["slice_devices"] = [{"path": f"/dev/{LOOPS[kind]}*", "count": SLICE}]
        if self.api is Api.DEVICE_PLUGIN:
            entry |= {"replicas": self.replicas, "device_list": self.device_list}
        if self.has_provisioner:
            entry["provisioned_by"] = "provisioner"
        return entry


@functools.cache
def _devices(directory: str, count: int, size: int) -> dict[str, frozenset[str]]:
    if directory:
        return {f"phone{number}": frozenset({f"{directory}/phone{number}"}) for number in range(count)}
    return {
        f"aosp_binder{first}": frozenset(f"{HOST_BINDERFS}/aosp_binder{each}" for each in range(first, first + size))
        for first in range(0, DEVICES, size)
    }


class Settings:
    """The configuration file."""

    def __init__(self, rng: random.Random) -> None:
        def likely(first: Any, second: Any, chance: float) -> Any:
            return first if rng.random() < chance else second

        self.cdi = CDI_DIRECTORIES[0]
        self.kubelet = rng.choice([*KubeletVersion])
        self.log_level = "info"
        size = rng.choice((1, 1, 2))
        self.binder = Pool(
            *NAMES["binder"],
            likely(Api.DEVICE_PLUGIN, Api.DRA, 0.8),
            size=size,
            replicas=rng.choice((1, 1, 2)),
            device_list=rng.choice(_LISTS),
        )
        self.phone, self.tablet = (
            Pool(
                *NAMES[kind],
                likely(first, second, 0.8),
                f"/run/aosp-binderfs/{kind}s",
                f"/run/aosp-binderfs/other-{kind}s",
                count=3,
                device_list=rng.choice(_LISTS),
                spreads=rng.random() < 0.5,
                per_device=rng.choice((None, 2, 2, 1)),
                slices=rng.random() < 0.3,
                is_requested=rng.random() < 0.3,
            )
            for kind, first, second in (
                ("phone", Api.DEVICE_PLUGIN, Api.DRA),
                ("tablet", Api.DRA, Api.DEVICE_PLUGIN),
            )
        )
        self.listen = likely("127.0.0.1:9478", "", 0.7)
        self.node_events = rng.random() < 0.5
        self.startup_taint = likely(TAINT, "", 0.5)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The resources."""
        return self.binder, self.phone, self.tablet

    def of(self, api: Api) -> list[Pool]:
        """Return the resources of an API."""
        return [pool for pool in self.pools if pool.api is api]

    def serves(self, driver: str, place: str) -> bool:
        """Return whether the plugin can release a claim of a driver with a device there."""
        pool = self._pool(driver)
        is_there = not pool.directory or place.startswith(f"{pool.directory}/")
        return pool.api is Api.DRA and pool.driver == driver and is_there

    def serve(self, driver: str, place: str) -> None:
        """Change what keeps the plugin from releasing a claim; see ``serves``."""
        pool = self._pool(driver)
        pool.api = Api.DRA
        if pool.driver != driver:
            pool.name, pool.other_name = pool.other_name, pool.name
        if pool.directory and not place.startswith(f"{pool.directory}/"):
            pool.directory, pool.other_directory = pool.other_directory, pool.directory

    def _pool(self, driver: str) -> Pool:
        return next(pool for pool in self.pools if driver in {pool.driver, driver_of(pool.other_name)})

    def text(self) -> str:
        """Return the content of the configuration file."""
        common = {"missing_device_ttl": TTL, "shared_devices": (), "verify": "binder", "cdi_dir": self.cdi}
        return json.dumps(
            {
                "version": "v1",
                "listen": self.listen,
                "node_events": self.node_events,
                "startup_taint": self.startup_taint,
                "kubelet_dir": DIRECTORY,
                "pod_resources_socket": POD_RESOURCES,
                "log_level": self.log_level,
                **common,
                "resources": [pool.entry() for pool in self.pools],
            }
        )
