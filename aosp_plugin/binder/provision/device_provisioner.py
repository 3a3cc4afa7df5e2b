"""Binder devices that the plugin creates: a binderfs that it mounts, with the configured number of them in it.

The mounted binderfs is the only record of what was created. Nothing is removed or unmounted here, not even when the
daemon ends: containers may hold the devices.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Iterator, Sequence

from aosp_plugin.binder.driver import binderfs, detached, mounts
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import BinderfsError, HostError, NotPermittedError

DEVICES_SOURCE = mounts.BINDERFS
"""The source of the mounts for binder devices."""

LOCK_TIMEOUT = 5.0
"""Seconds to wait for another resource that provisions in the same directory."""

_LOCKS: dict[str, threading.Lock] = {}
"""A lock for each directory: if the mount of one resource hangs, those in other directories do not wait for it."""

MODE = 0o666
"""Android's processes run as many users: system (1000), and one for each app."""


class DeviceProvisioner:
    """Keeps the required binder devices in place, for one worker thread."""

    def __init__(
        self,
        host: Host,
        directory: str,
        names: Sequence[str],
        max_devices: int | None = None,
    ) -> None:
        """``names`` are those of the binder devices, ``directory`` is the host's that the binderfs is mounted on.

        The directory belongs outside /dev, because every privileged container gets a device for each binder device
        below /dev. ``max_devices`` is the lower limit of the mount's ``max=``: all binder devices, one more for their
        recreation, and one for each replaced device that a process still holds. None: the kernel's default.
        """
        self._host = host
        self._host_directory = directory
        self._names = names
        self._max_devices = max_devices

    def provision(self) -> int:
        """Create the missing binder devices and restore changed modes. Return the number of both.

        Without a binderfs on the directory, one is mounted. After an unmount its binder devices are on another file
        system, and the health check reports them as replaced until ``missing_device_ttl`` is over, because containers
        may hold the old ones. ``max=`` is raised if it is smaller than required, and never lowered. A scan without
        anything to do costs one system call per binder device and writes nothing.

        Below a root other than / the mount must propagate to the host (mountPropagation: Bidirectional).

        Raises HostError; what was created stays. An attempt that fails again changes no file: that would cause the
        next scan, and with it the next attempt.
        """
        with self._path() as directory, exclusive(directory):
            mount_if_missing(directory, self._max_devices)
            return sum(create_or_restore(directory, name) for name in self._names)

    def check(self) -> None:
        """Check without effect that there is a binderfs, or that one could be mounted. Raises HostError."""
        with self._path() as directory:
            check_directory(directory)

    def _path(self) -> contextlib.AbstractContextManager[str]:
        return provisioning("binder devices", self._host, self._host_directory)


@contextlib.contextmanager
def provisioning(what: str, host: Host, directory: str) -> Iterator[str]:
    """Yield the host's directory as a path of this process without links. Raises HostError instead of OSError."""
    with translated_errors(f"provision {what} in {directory}"):
        yield host.process_path(host.resolve(directory))


def create_or_restore(directory: str, name: str) -> bool:
    """Create the binder device or restore its mode. Return whether anything was changed."""
    path = f"{directory}/{name}"
    try:
        return set_mode(path, MODE)
    except FileNotFoundError:
        binderfs.add_device(directory, name)
        set_mode(path, MODE)
    return True


@contextlib.contextmanager
def translated_errors(operation: str) -> Iterator[None]:
    """Raise HostError, or NotPermittedError, instead of an OSError. ``operation`` completes "cannot ..."."""
    try:
        yield
    except PermissionError as error:
        raise NotPermittedError(f"cannot {operation}: {_reason(error)}: run as root") from error
    except OSError as error:
        raise HostError(f"cannot {operation}: {_reason(error)}") from error


def check_directory(directory: str) -> None:
    """Raise what would keep ``mount_if_missing`` from having a binderfs at ``directory``. Changes nothing."""
    if binderfs.mount_at(directory) is None:
        with contextlib.suppress(FileNotFoundError):
            _check_empty(directory)
        detached.check_mountable(directory)


def mount_if_missing(directory: str, max_devices: int | None, source: str = DEVICES_SOURCE) -> None:
    """Mount a binderfs with this ``source`` on ``directory``, or raise the ``max=`` of the one that is mounted there.

    The directory is created if it does not exist. ``max_devices`` None leaves ``max=`` at the kernel's default.
    ``max=`` is never lowered, and stays if the kernel does not show it. Raises HostError, or OSError for the directory.
    """
    mounted = binderfs.mount_at(directory)
    if mounted is None:
        if not os.path.lexists(directory):
            os.makedirs(directory)
        _check_empty(directory)
        binderfs.mount(directory, max_devices, source=source)
    elif max_devices is not None and mounted.max_devices is not None and mounted.max_devices < max_devices:
        binderfs.mount(directory, max_devices, remount=True)


def _check_empty(directory: str) -> None:
    if os.listdir(directory):
        raise BinderfsError(f"{directory} is neither empty nor a binderfs: choose another directory")


@contextlib.contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Exclude other threads that provision in the same directory.

    Resources may share a binderfs, and a reload leaves the thread of the previous configuration behind if it hangs. A
    file lock would not do: on the host, every user can open the directory and hold one. Raises HostError after
    ``LOCK_TIMEOUT``.
    """
    lock = _LOCKS.setdefault(directory, threading.Lock())
    if not lock.acquire(timeout=LOCK_TIMEOUT):
        raise HostError(f"cannot provision binder devices in {directory}: another resource has not ended to do so")
    try:
        yield
    finally:
        lock.release()


def set_mode(path: str, mode: int) -> bool:
    """Give the file the permissions ``mode`` if it has others, regardless of the umask. Return whether it had.

    Never follows a link: a user who can write to the directory could replace the file with a link to a file of root.
    """
    if stat.S_IMODE(os.lstat(path).st_mode) == mode:
        return False
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)  # what glibc does from 2.32 on for AT_SYMLINK_NOFOLLOW
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)
    return True


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}"
