"""The paths of ``shared_mounts`` and ``shared_devices`` that exist on the host."""

from __future__ import annotations

import logging
import stat
from typing import TYPE_CHECKING

from aosp_plugin.errors import ConfigError, NotRespondingError

if TYPE_CHECKING:
    from collections.abc import Collection

    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)


class SharedPaths:
    """Looks up the shared paths of one resource at each scan. To be used in the worker thread."""

    def __init__(self, host: Host, paths: Collection[str], devices: Collection[str]) -> None:
        """``devices`` are those of the ``paths`` that must be devices."""
        self._host = host
        self._devices = frozenset(devices)
        self._found = dict.fromkeys(sorted(paths), True)
        self._not_devices: frozenset[str] = frozenset()
        self._scanned = False

    @property
    def present(self) -> frozenset[str]:
        """The paths that containers get, as of the last scan; before the first one, all."""
        return frozenset(path for path, found in self._found.items() if found) - self._not_devices

    def scan(self) -> frozenset[str]:
        """Look up the paths, and return ``present``. Log once for each that is not.

        Raises ConfigError at the first scan if one of ``devices`` is another file. Later, when the configuration has
        been accepted, containers do not get it.
        """
        first, self._scanned = not self._scanned, True
        not_devices: frozenset[str] = frozenset()
        for path, found_before in self._found.items():
            found, is_device = self._status(path)
            self._found[path] = found
            if found_before and not found:
                LOG.info("shared path not found, not mounted", extra={"path": path})
            if found and not is_device and path in self._devices:
                not_devices |= {path}
        if first and not_devices:
            raise ConfigError(
                f"shared_devices: {min(not_devices)} is not a device; to share a directory, use shared_mounts"
            )
        for path in sorted(not_devices - self._not_devices):
            LOG.warning("shared device is not a device, not passed to containers", extra={"path": path})
        self._not_devices = not_devices
        return self.present

    def _status(self, path: str) -> tuple[bool, bool]:
        """Return whether a path exists, and whether it is a device, links followed.

        One that does not respond counts as a device that exists, or containers would lack it without a reason.
        """
        try:
            mode = self._host.lstat(self._host.resolve(path)).st_mode
        except NotRespondingError:
            return True, True
        except OSError:
            return False, False
        return True, stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
