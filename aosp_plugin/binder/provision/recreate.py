"""Recreation: a fresh binder device replaces a used one before the next container starts.

A binder device remembers the user of its first context manager for as long as it exists, and refuses every other user
with EPERM (drivers/android/binder.c ``binder_ioctl_set_ctx_mgr``). A process of the previous tenant that still holds
the device stays in its context, next to the processes of the new tenant. Neither can be undone on an existing device; a
fresh one has a context of its own.

The fresh device is created under a temporary name and renamed over the old one, which a binderfs allows
(drivers/android/binderfs.c ``binderfs_rename``). So the name always exists, and a crash leaves at most a temporary
device, which the next recreation or ``sweep`` removes. Unlinking the old device first would lose the name in a crash
between both steps. It would also lose the name if ``max=`` is reached and a process holds the old device, which counts
until that process ends.

The minor number and the inode of the device change. The file system does not, so that ``health`` does not report the
device as replaced. The driver's logs (binder_logs) name the new context by the temporary name, permanently. A listing
of the binderfs that needs more than one getdents call (from about 800 devices on) may miss a device that is recreated
meanwhile, because the kernel inserts new files at the front. A lookup of the name does not miss it, and neither does a
listing of links to the devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import Step
from aosp_plugin.binder.errors import BinderfsError, DevicesExhaustedError, HostError
from aosp_plugin.binder.provision.mount import MODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.driver.host import Host

TEMPORARY_PREFIX = ",+"
"""The temporary name of a device is this and its own name.

No device prefix starts with a comma (``names.name_problem``), so a scan neither lists such a device nor warns about it.
Two bytes leave room for every device ID: 63 characters of up to 4 bytes, and a binderfs accepts 255 bytes.
"""


LOCK_TIMEOUT, LOCK_INTERVAL = 5.0, 0.02
"""Seconds to wait for another process that recreates devices of the same binderfs, and between two attempts. Less than
``framework.timings.Timings.pre_start``, so that the kubelet gets the cause."""


def recreate_device(device: BinderDevice, host: Host) -> None:
    """Replace ``device`` with a fresh one that belongs to root and has the mode ``MODE``.

    Mode and owner of the old device are not kept, because a container may have changed both.

    Processes that hold the old device keep it, and share no context with the fresh one. After a failure the old device
    is unchanged. Raises DevicesExhaustedError if ``max=`` leaves no room for one more device, NotPermittedError, and
    BinderfsError for other causes, such as a device that is not in a binderfs.
    """
    path = _file_in_binderfs(device, host)
    with _locked(path.rpartition("/")[0]):
        _replace(path)


def sweep(directory: str, host: Host) -> int:
    """Remove temporary devices that killed processes left in the binderfs at ``directory`` of the host.

    Returns the number of devices removed. Raises NotPermittedError, and BinderfsError for other causes.
    """
    path = host.process_path(directory)
    with _locked(path):
        temporary = [name for name in binderfs.devices_in(path) if name.startswith(TEMPORARY_PREFIX)]
        return sum(binderfs.remove_device(path, name) for name in temporary)


def _file_in_binderfs(device: BinderDevice, host: Host) -> str:
    """Return the path of the device's own file for this process. ``device.path`` may be a link to it."""
    if device.kind is not Kind.BINDERFS:
        raise BinderfsError(
            f"cannot recreate {device.path}: its kind is {device.kind}, and only devices in a binderfs can be recreated"
        )
    with binderfs.refusals(Step.RECREATE, device.path):
        path = host.resolve(device.path)
    if path.rpartition("/")[0] != device.directory:
        raise BinderfsError(
            f"cannot recreate {device.path}: it is not in the directory of its binderfs: "
            f"mount the whole binderfs and link to the device, instead of binding the device alone"
        )
    return host.process_path(path)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Exclude recreations and sweeps of the same binderfs by other threads and processes.

    The lock is on binder-control, which only root can open (drivers/android/binderfs.c ``binderfs_binder_ctl_create``,
    mode 0600). Every user and every tenant can open the directory: a lock on it could block the start of every
    container on the host. Raises BinderfsError after ``LOCK_TIMEOUT``.
    """
    control = binderfs.open_control(directory)
    try:
        _lock(control, f"{directory}/{binderfs.CONTROL_NAME}")
        yield
    finally:
        os.close(control)


def _lock(descriptor: int, path: str) -> None:
    """Wait for an exclusive lock. The kernel has no deadline for that, so it is tried again and again."""
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise BinderfsError(f"cannot lock {path}: another process holds the lock (lslocks shows it)") from None
            time.sleep(LOCK_INTERVAL)
        else:
            return


def _replace(path: str) -> None:
    directory, _, name = path.rpartition("/")
    temporary = f"{TEMPORARY_PREFIX}{name}"
    new = f"{directory}/{temporary}"
    with binderfs.refusals(Step.RECREATE, path):
        os.lstat(path)  # the name must exist
    binderfs.remove_device(directory, temporary)
    try:
        _add(directory, temporary, path)
        with binderfs.refusals(Step.RECREATE, path):
            os.chmod(new, MODE)
            os.rename(new, path)
    except BaseException:
        with contextlib.suppress(HostError):
            binderfs.remove_device(directory, temporary)
        raise


def _add(directory: str, temporary: str, path: str) -> None:
    try:
        binderfs.add_device(directory, temporary)
    except DevicesExhaustedError as error:
        raise DevicesExhaustedError(
            f"cannot recreate {path}: {error} (recreation requires room for one more device, because the old one stays "
            f"until the fresh one replaces it; removed devices that processes hold open count as well)"
        ) from error
