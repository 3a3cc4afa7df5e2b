"""Recreation of binder devices before a container starts, and retries of those that failed."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.names import natural_sort
from aosp_plugin.binder.errors import HostError, ProvisionerError
from aosp_plugin.binder.provision import recreate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.binder.devices.sets import DeviceSet
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.provision.phones import PhoneProvisioner

LOG = logging.getLogger(__name__)


class Recreator:
    """Recreates the binder devices of one resource and remembers failures.

    To be used in one thread, so that no retry happens between the recreation of a device for a container and the start
    of that container. ``failed`` may be read in any thread.
    """

    def __init__(self, host: Host, store: DeviceStore, provisioner: PhoneProvisioner | None) -> None:
        """``provisioner`` mounts a fresh binderfs for a phone; without it, each device is replaced in its binderfs."""
        self._host = host
        self._store = store
        self._provisioner = provisioner
        self._swept: set[str] = set()
        # The phones or binder devices that could not be replaced, with their binder devices. Replaced as a whole.
        self._failed: Mapping[str, Sequence[str]] = {}

    @property
    def failed(self) -> frozenset[str]:
        """The binder devices that could not be recreated."""
        return frozenset(itertools.chain.from_iterable(self._failed.values()))

    def recreate(self, group: DeviceSet) -> None:
        """Replace the binder devices of a device set with fresh ones. Raises HostError; the failure is remembered."""
        parts = {name: (name,) for name in group.members} if self._provisioner is None else {group.id: group.members}
        for part, names in parts.items():
            self._recreate(part, names)

    def retry(self) -> None:
        """Retry failed recreations. A device whose recreation failed is in no container: PreStartContainer failed.

        Temporary devices of a killed process are removed, once per binderfs.
        """
        if self._provisioner is None:
            self._sweep()
        for part in natural_sort([*self._failed]):
            try:
                self._recreate(part, self._failed[part])
            except ProvisionerError:  # nor would it answer for the others
                return
            except HostError as error:
                LOG.debug("recreation failed again", extra={"device": part, "error": str(error)})

    def _recreate(self, part: str, names: Sequence[str]) -> None:
        """Replace a phone or a binder device, of which ``names`` are the binder devices. Raises HostError."""
        try:
            self._replace(part, names)
        except BaseException:
            self._failed = {**self._failed, part: names}
            raise
        self._failed = {other: names for other, names in self._failed.items() if other != part}

    def _replace(self, part: str, names: Sequence[str]) -> None:
        if self._provisioner is not None:
            self._provisioner.replace(part)
            # Another file system at the path of a known device would otherwise count as replaced.
            self._store.renew(names)
            return
        device = self._store.devices.get(part)
        if device is None:
            raise HostError(f"binder device {part!r} does not exist")
        recreate.recreate_device(device, self._host)

    def _sweep(self) -> None:
        directories = {device.directory for device in self._store.devices.values() if device.directory}
        for directory in directories - self._swept:
            self._swept.add(directory)
            try:
                count = recreate.sweep(directory, self._host)
            except HostError as error:
                LOG.warning("cannot remove temporary binder devices", extra={"dir": directory, "error": str(error)})
            else:
                if count:
                    LOG.info("removed temporary binder devices", extra={"dir": directory, "devices": count})
