"""Recreation of binder devices before a container starts, and retries of those that failed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.phones import PHONE_BINDER_DEVICES
from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.errors import HostError, ProvisionerError
from aosp_plugin.binder.provision import recreate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.binder_device import Kind
    from aosp_plugin.binder.discovery.health import Reason
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.provision.phones import PhoneProvisioner

LOG = logging.getLogger(__name__)


class Recreator(ABC):
    """Recreates the binder devices of one resource and remembers failures.

    To be used in one thread, so that no retry happens between the recreation of a device for a container and the start
    of that container. ``reason`` may be called in any thread.
    """

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self.changed: set[str] = set()
        """Binder devices whose ``reason`` has changed; to be emptied by the reader."""

    def recreate(self, group: DeviceSet) -> None:
        """Replace the binder devices of a device set with fresh ones. Raises HostError; the failure is remembered."""
        for part in self._parts(group):
            self._recreate_part(part)

    def reason(self, name: str, kind: Kind) -> Reason | None:
        """Return NOT_RECREATED if the binder device could not be recreated, or never can be; otherwise None."""
        return health.evaluate_recreation(kind, failed=self._part_of(name) in self._failed)

    def retry(self) -> None:
        """Retry failed recreations. A device whose recreation failed is in no container: PreStartContainer failed."""
        for part in natural_sort([*self._failed]):
            try:
                self._recreate_part(part)
            except ProvisionerError:  # nor would it answer for the others
                return
            except HostError as error:
                LOG.debug("recreation failed again", extra={"device": part, "error": str(error)})

    @abstractmethod
    def _parts(self, group: DeviceSet) -> Sequence[str]:
        """Return the names of what is replaced separately."""

    @abstractmethod
    def _part_of(self, name: str) -> str:
        """Return the part that the binder device ``name`` is in."""

    @abstractmethod
    def _binder_devices(self, part: str) -> Collection[str]:
        """Return the names of the binder devices of a part."""

    @abstractmethod
    def _replace(self, part: str) -> None:
        """Replace a part. Raises HostError."""

    def _recreate_part(self, part: str) -> None:
        try:
            self._replace(part)
        except BaseException:
            self._set_failed(part, failed=True)
            raise
        self._set_failed(part, failed=False)

    def _set_failed(self, part: str, *, failed: bool) -> None:
        if failed != (part in self._failed):
            self._failed ^= {part}
            self.changed.update(self._binder_devices(part))


class PhoneRecreator(Recreator):
    """Mounts a fresh binderfs for a phone."""

    def __init__(self, provisioner: PhoneProvisioner, store: DeviceStore) -> None:
        super().__init__()
        self._provisioner = provisioner
        self._store = store

    def _parts(self, group: DeviceSet) -> Sequence[str]:
        return (group.id,)

    def _part_of(self, name: str) -> str:
        return name.partition("/")[0]

    def _binder_devices(self, part: str) -> Collection[str]:
        return [f"{part}/{name}" for name in PHONE_BINDER_DEVICES]

    def _replace(self, part: str) -> None:
        self._provisioner.replace(part)
        # Another file system at the path of a known device would otherwise count as replaced.
        self._store.renew(self._binder_devices(part))


class DeviceRecreator(Recreator):
    """Replaces each binder device in its binderfs."""

    def __init__(self, host: Host, store: DeviceStore) -> None:
        super().__init__()
        self._host = host
        self._store = store
        self._swept: set[str] = set()

    def retry(self) -> None:
        """Retry failed recreations, and remove temporary devices of a killed process."""
        self._sweep()
        super().retry()

    def _parts(self, group: DeviceSet) -> Sequence[str]:
        return group.members

    def _part_of(self, name: str) -> str:
        return name

    def _binder_devices(self, part: str) -> Collection[str]:
        return (part,)

    def _replace(self, part: str) -> None:
        device = self._store.device(part)
        if device is None:
            raise HostError(f"binder device {part!r} does not exist")
        recreate.recreate_device(device, self._host)

    def _sweep(self) -> None:
        """Remove temporary devices, once per binderfs."""
        directories = {place.directory for place in self._store.tracked.places() if place.directory}
        for directory in directories - self._swept:
            self._swept.add(directory)
            try:
                count = recreate.sweep(directory, self._host)
            except HostError as error:
                LOG.warning("cannot remove temporary binder devices", extra={"dir": directory, "error": str(error)})
            else:
                if count:
                    LOG.info("removed temporary binder devices", extra={"dir": directory, "devices": count})
