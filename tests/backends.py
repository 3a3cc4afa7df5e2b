"""Binder backends over real directories, as a server has them, for the tests of the backend package."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.framework.backend import ClaimParameters, ContainerEdits
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.inventory import Inventory
from tests.support import Clock

CDI_DIRECTORY = Config().cdi_dir


class Served:
    """A backend, and what its last scan has found."""

    def __init__(self, backend: BinderBackend) -> None:
        self.backend = backend
        self._inventory = Inventory()
        self._changed = False

    @property
    def found(self) -> FoundDevices:
        """What the last scan has found; nothing before the first one."""
        return self._inventory.found or FoundDevices()

    def due(self) -> float | None:
        """Return the seconds after which the next scan is due without a change of files."""
        return 0.0 if self._changed else self.found.due

    def scan(self) -> dict[str, str]:
        """Scan, and return the reason of each device, empty if it is healthy."""
        self._inventory.publish(self.backend.scan())
        self._changed = False
        return {device.id: device.reason for device in self.found.devices}

    def update_host(self) -> None:
        """Update the host after a scan."""
        self._changed = self.backend.update_host(self.found)

    def scan_and_update(self) -> None:
        """Scan, and update the host."""
        self.scan()
        self.update_host()

    def settle(self) -> None:
        """Scan, update the host as far as that is possible, and scan again."""
        self.scan()
        with contextlib.suppress(BackendError):
            self.update_host()
        self.scan()

    def tell(self, **changes: Any) -> None:
        """Change what the backend is told."""
        self.backend.input = self.backend.input._replace(**changes)

    def reset(self) -> None:
        """Let the next scan forget the history."""
        self.tell(resets=self.backend.input.resets + 1)

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Allocate devices as the kubelet does."""
        self._inventory.snapshot.require(ids)
        return self.backend.allocate(self.found, ids)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose devices for a container."""
        return self.backend.prefer(self.found, available, must_include, size)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Prepare devices for the start of a container as the kubelet does."""
        self._inventory.snapshot.require(ids, by_owner=True)
        self.backend.pre_start(self.found, ids)

    def prepare(self, ids: Sequence[str], parameters: Sequence[ClaimParameters] = ()) -> Sequence[ContainerEdits]:
        """Prepare the devices of a claim."""
        return self.backend.prepare(self.found, ids, parameters)

    def unprepare(self, ids: Sequence[str]) -> None:
        """Release devices of claims."""
        self.backend.unprepare(ids)

    def attributes(self, device_id: str) -> Mapping[str, bool | int | str]:
        """Return what users can select a device by."""
        return self.backend.attributes(self.found, device_id)

    def is_prepared(self, ids: Sequence[str]) -> bool:
        """Return whether the devices are as they were prepared."""
        return self.backend.is_prepared(self.found, ids)


def binder_backend(
    directory: Path | str,
    *,
    host: Host | None = None,
    cdi_dir: Path | str = CDI_DIRECTORY,
    clock: Callable[[], float] = time.monotonic,
    **keys: Any,
) -> Served:
    """Return a backend that accepts plain files as binder devices; ``keys`` are configuration keys."""
    resource = Resource(**{"device_dir": str(directory), "verify": Verify.FILE, "shared_devices": (), **keys})
    return Served(_backend(host or Host(), resource, cdi_dir=str(cdi_dir), clock=clock))


def phones_backend(
    directory: Path, count: int = 3, *, clock: Callable[[], float] = time.monotonic, **keys: Any
) -> Served:
    """Return a backend with phones in a directory, which has not scanned yet; CDI specs are beside it."""
    resource = Resource.of(phones=Phones(count=count, directory=str(directory)), **{"shared_devices": (), **keys})
    return Served(_backend(Host(), resource, cdi_dir=str(directory.parent / "cdi"), clock=clock))


def started_phones(directory: Path, count: int = 3, clock: Clock | None = None, **keys: Any) -> Served:
    """Return the backend of a process after its first host updates."""
    backend = phones_backend(directory, count, clock=clock or Clock(), **keys)
    for _ in range(2):
        backend.settle()
    return backend


def file_systems(directory: Path) -> dict[str, int]:
    """Return when a device of each phone with a mount was created, which tells its binderfs from a later one."""
    devices = {path.name: path / "binder" for path in directory.iterdir()}
    return {phone: device.stat().st_ctime_ns for phone, device in devices.items() if device.exists()}


def _backend(host: Host, resource: Resource, *, cdi_dir: str, clock: Callable[[], float]) -> BinderBackend:
    kind = ClaimsBackend if resource.api is Api.DRA else BinderBackend
    return kind(host, resource, cdi_dir=cdi_dir, clock=clock)
