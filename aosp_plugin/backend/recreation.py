"""Recreation of binder devices before a container starts, and retries of those that failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision import recreate

if TYPE_CHECKING:
    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.discovery.health import Reason
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)


class Recreator:
    """Recreates binder devices of one resource and remembers failures.

    To be used in one thread, so that no retry happens between the recreation of a device for a container and the start
    of that container. ``reason`` may be called in any thread.
    """

    def __init__(self, host: Host, store: DeviceStore) -> None:
        self._host = host
        self._store = store
        self._failed: set[str] = set()
        self._swept: set[str] = set()
        self.changed: set[str] = set()
        """Binder devices whose ``reason`` has changed; to be emptied by the reader."""

    def recreate(self, name: str) -> None:
        """Replace a binder device with a fresh one. Raises HostError; the failure is remembered."""
        try:
            self._recreate(name)
        except BaseException:
            self._set_failed(name, failed=True)
            raise
        self._set_failed(name, failed=False)

    def reason(self, device: BinderDevice) -> Reason | None:
        """Return NOT_RECREATED if the binder device could not be recreated, or never can be; otherwise None."""
        return health.evaluate_recreation(device, failed=device.name in self._failed)

    def retry(self) -> None:
        """Retry failed recreations, and remove temporary devices of a killed process.

        A device whose recreation failed is in no container: PreStartContainer rejected it.
        """
        self._sweep()
        for name in sorted(self._failed, key=natural_key):
            try:
                self.recreate(name)
            except HostError as error:
                LOG.debug("recreation failed again", extra={"device": name, "error": str(error)})

    def _recreate(self, name: str) -> None:
        device = self._store.device(name)
        if device is None:
            raise HostError(f"binder device {name!r} does not exist")
        recreate.recreate_device(device, self._host)

    def _set_failed(self, name: str, *, failed: bool) -> None:
        if failed != (name in self._failed):
            self._failed ^= {name}
            self.changed.add(name)

    def _sweep(self) -> None:
        """Remove temporary devices, once per binderfs."""
        devices = [known.device for known in self._store.tracked.values()]
        directories = {device.directory for device in devices if device.directory}
        for directory in directories - self._swept:
            self._swept.add(directory)
            try:
                count = recreate.sweep(directory, self._host)
            except HostError as error:
                LOG.warning("cannot remove temporary binder devices", extra={"dir": directory, "error": str(error)})
            else:
                if count:
                    LOG.info("removed temporary binder devices", extra={"dir": directory, "devices": count})
