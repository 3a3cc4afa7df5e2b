"""Recreation of binder devices before a container starts, and retries of those that failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery import health
from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision import recreate

if TYPE_CHECKING:
    from aosp_plugin.binder.discovery.health import Reason
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)


class Recreator:
    """Recreates binder devices of one resource and remembers failures."""

    def __init__(self, host: Host, store: DeviceStore) -> None:
        self._host = host
        self._store = store
        self._failed: set[str] = set()
        self._swept: set[str] = set()

    def recreate(self, name: str) -> None:
        """Replace a binder device with a fresh one. Raises HostError; the failure is remembered."""
        self._failed.add(name)
        device = self._store.device(name)
        if device is None:
            raise HostError(f"binder device {name!r} does not exist")
        recreate.recreate_device(device, self._host)
        self._failed.discard(name)

    def reason(self, name: str) -> Reason | None:
        """Return NOT_RECREATED if the binder device could not be recreated, or never can be; otherwise None."""
        return health.evaluate_recreation(self._store.device(name), failed=name in self._failed)

    def retry(self) -> bool:
        """Retry failed recreations, and remove temporary devices of a killed process. Return whether any had failed."""
        self._sweep()
        retried = bool(self._failed)
        for name in sorted(self._failed, key=natural_key):
            try:
                self.recreate(name)
            except HostError as error:
                LOG.debug("recreation failed again", extra={"device": name, "error": str(error)})
        return retried

    def _sweep(self) -> None:
        """Remove temporary devices, once per binderfs."""
        devices = map(self._store.device, self._store.names)
        directories = {device.directory for device in devices if device is not None and device.directory}
        for directory in directories - self._swept:
            self._swept.add(directory)
            try:
                count = recreate.sweep(directory, self._host)
            except HostError as error:
                LOG.warning("cannot remove temporary binder devices", extra={"dir": directory, "error": str(error)})
            else:
                if count:
                    LOG.info("removed temporary binder devices", extra={"dir": directory, "devices": count})
