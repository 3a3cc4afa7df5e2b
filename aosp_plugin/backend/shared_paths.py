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

        Raises ConfigError at the first scan if one of ``devices`` is a directory, which only a wrong configuration
        explains. Containers do not get another file, or a directory that replaces a device later: a program may have
        written to the path of a device that was missing, and that must not cost the node all its phones.
        """
        first, self._scanned = not self._scanned, True
        not_devices: frozenset[str] = frozenset()
        for path, found_before in self._found.items():
            mode = self._mode(path)
            self._found[path] = mode is not None
            if found_before and mode is None:
                LOG.info("shared path not found, not mounted", extra={"path": path})
            if path not in self._devices or mode is None or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                continue
            if first and stat.S_ISDIR(mode):
                raise ConfigError(f"shared_devices: {path} is a directory, not a device: use shared_mounts")
            not_devices |= {path}
        for path in sorted(not_devices - self._not_devices):
            LOG.warning("shared device is not a device, not passed to containers", extra={"path": path})
        self._not_devices = not_devices
        return self.present

    def _mode(self, path: str) -> int | None:
        """Return the mode of a file, links followed; None if it does not exist.

        A file that does not respond counts as a device, or containers would lack it without a reason.
        """
        try:
            return self._host.lstat(self._host.resolve(path)).st_mode
        except NotRespondingError:
            return stat.S_IFCHR
        except OSError:
            return None
