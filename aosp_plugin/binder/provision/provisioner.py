"""Provisioning by the daemon: a binderfs that it mounts, with the configured number of binder devices in it.

The mounted binderfs is the only record of what was created. Nothing is removed or unmounted here, not even when the
daemon ends: containers may hold the devices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.errors import HostError
from aosp_plugin.binder.provision.mount import (
    MODE,
    check_mountable,
    exclusive,
    mount_if_missing,
    set_mode,
    translated_errors,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from aosp_plugin.binder.driver.host import Host

RETRY_AFTER = 60.0
"""Seconds without a further attempt after a failed one. An attempt may itself cause a file event, and with it the next
scan, which would be the next attempt."""


@dataclass(frozen=True, slots=True)
class ProvisionSpec:
    """The required binder devices: ``count`` of them, of which ``<prefix><first>`` is the first."""

    directory: str
    """The host directory that the binderfs is mounted on. It belongs outside /dev, because every privileged container
    gets a device for each binder device below /dev."""
    prefix: str
    first: int
    count: int
    max_devices: int | None = None
    """The lower limit of the mount's ``max=``: all binder devices, one more for their recreation, and one for each
    replaced device that a process still holds. None: the kernel's default."""


class DeviceProvisioner:
    """Keeps the required binder devices in place, with a pause after a failure. For one worker thread."""

    def __init__(self, spec: ProvisionSpec, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._host = host
        self._clock = clock
        self._failure: HostError | None = None
        self._not_before = 0.0

    def provision(self) -> int:
        """Create the missing binder devices and restore changed modes. Return the number of both.

        Without a binderfs on the directory, one is mounted. After an unmount its binder devices are on another file
        system, and the health check reports them as replaced until ``missing_device_ttl`` is over, because containers
        may hold the old ones. ``max=`` is raised if it is smaller than required, and never lowered. A scan without
        anything to do costs one system call per binder device and writes nothing.

        Below a root other than / the mount must propagate to the host (mountPropagation: Bidirectional).

        Raises HostError; what was created stays. Within ``RETRY_AFTER`` seconds, a further call raises the same error
        without an attempt.
        """
        if self._failure is not None and self._clock() < self._not_before:
            raise self._failure
        try:
            with self._errors():
                created = self._provision(self._directory())
        except HostError as error:
            self._failure = error.with_traceback(None)
            self._not_before = self._clock() + RETRY_AFTER
            raise
        self._failure = None
        return created

    def check(self) -> None:
        """Check without effect that there is a binderfs, or that one could be mounted. Raises HostError."""
        with self._errors():
            check_mountable(self._directory())

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translated_errors(f"provision binder devices in {self._spec.directory}")

    def _directory(self) -> str:
        return self._host.process_path(self._host.resolve(self._spec.directory))

    def _provision(self, directory: str) -> int:
        numbers = range(self._spec.first, self._spec.first + self._spec.count)
        with exclusive(directory):
            mount_if_missing(directory, self._spec.max_devices)
            return sum(_create_or_restore(directory, f"{self._spec.prefix}{number}") for number in numbers)


def _create_or_restore(directory: str, name: str) -> bool:
    """Create the binder device or restore its mode. Return whether anything was changed."""
    path = f"{directory}/{name}"
    try:
        return set_mode(path, MODE)
    except FileNotFoundError:
        binderfs.add_device(directory, name)
        set_mode(path, MODE)
    return True
