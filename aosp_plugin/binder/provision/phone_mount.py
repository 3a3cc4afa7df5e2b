"""The binderfs of one phone: whether a directory has one, and whether it is the plugin's; mounting and unmounting.

A binderfs is filled before it is attached (``binderfs.create_mount``), so that a directory has either a complete
binderfs or none, whenever the process is killed. All paths are paths of this process.
"""

import contextlib
import os
import stat
from collections.abc import Iterable

from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES
from aosp_plugin.binder.driver import binderfs, mounts
from aosp_plugin.binder.driver.host import TRANSIENT_ERRORS, Host
from aosp_plugin.binder.driver.mounts import MountPoint
from aosp_plugin.binder.host_errors import BinderfsError
from aosp_plugin.binder.provision.directories import MODE, set_mode

SOURCE = "aosp-phone"
"""The source of the mounts for pods that get a phone through the device plugin API. A binderfs with neither this source
nor the next one is not the plugin's: it may have ``stats=global``, which shows the transactions of all phones."""

CLAIM_SOURCE = "aosp-claim"
"""The source of the mounts for ResourceClaims. It tells for which API a phone was mounted."""


class ForeignMountError(BinderfsError):
    """Another file system, or a file, is in place of the plugin's mount."""


class PropagationError(BinderfsError):
    """What is mounted here does not appear on the host: a container would get the previous binderfs of the phone."""


def require_propagation(host: Host, directory: str, table: Iterable[MountPoint]) -> None:
    """Require that mounts in ``directory`` appear on the host, where the container runtime looks for them.

    Raises PropagationError.
    """
    in_container = host.process_path("/") != "/"
    around = [mount for mount in table if f"{directory}/".startswith(f"{mount.directory.rstrip('/')}/")]
    if not around:
        return
    mount = max(reversed(around), key=lambda mount: len(mount.directory))  # the last one at a place covers the others
    if not mount.shared if in_container else (mount.slave and not has_namespace_of_init()):
        raise PropagationError(
            f"mounts in {directory} do not propagate to the host: a container requires mountPropagation: Bidirectional "
            "for its volume, a systemd service no ProtectSystem, PrivateTmp and the like"
        )


def has_namespace_of_init() -> bool:
    """Return whether this process has the mount namespace of process 1; False if that is not readable."""
    try:
        return os.readlink("/proc/self/ns/mnt") == os.readlink("/proc/1/ns/mnt")
    except OSError:
        return False


def read_mount_table() -> tuple[MountPoint, ...]:
    """Return the mounts of this process. Reading the table accesses no mounted file system."""
    return mounts.parse(mounts.read_table())


def own_mounts(table: Iterable[MountPoint]) -> dict[str, dict[int, str]]:
    """Return the sources of the plugin's binderfs mounts by directory and st_dev.

    A bind mount of one phone in place of another one is not the plugin's: both would have the same binder devices.
    """
    own: dict[str, dict[int, str]] = {}
    first: dict[tuple[str, int], str] = {}
    for mount in table:
        if mount.type == mounts.BINDERFS and mount.source in {SOURCE, CLAIM_SOURCE}:
            place = os.path.dirname(mount.directory), mount.st_dev
            if first.setdefault(place, mount.directory) == mount.directory:
                own.setdefault(mount.directory, {})[mount.st_dev] = mount.source
    return own


def mounted_file_system(path: str) -> int | None:
    """Return st_dev of the file system mounted on a directory; None if there is none, or no directory.

    Raises ForeignMountError if nothing can be mounted there, and OSError.
    """
    with contextlib.suppress(FileNotFoundError):  # another process may remove it meanwhile
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise ForeignMountError(f"{path} is not a directory: remove it, or choose another phones.directory")
        if status.st_dev != os.lstat(os.path.dirname(path)).st_dev:
            return status.st_dev
        if os.listdir(path):
            raise ForeignMountError(f"{path} is not empty: remove its files, or choose another phones.directory")
    return None


def attach_new(path: str, source: str = SOURCE) -> int:
    """Mount a new binderfs on a directory in place of what is mounted there. Return its st_dev.

    The directory is created if it does not exist, and removed if the mount fails, as it does beyond fs.mount-max: a
    directory is a phone that may have a binderfs. Raises BinderfsError and OSError.
    """
    with binderfs.create_mount(path, source) as mount:
        root = f"/proc/self/fd/{mount}"
        fill(root, path)
        os.makedirs(path, exist_ok=True)
        unmount_all(path)
        try:
            binderfs.attach(mount, path)
        except BinderfsError:
            os.rmdir(path)
            raise
        return os.stat(root).st_dev


def fill(root: str, path: str) -> None:
    """Give a binderfs exactly the binder devices of a phone, with the mode ``MODE``. ``path`` is for errors.

    The kernel creates those of its parameter ``devices=`` at each mount (drivers/android/binderfs.c
    ``binderfs_fill_super``): usually these three, but CONFIG_ANDROID_BINDER_DEVICES may be empty or have other names.
    """
    try:
        existing = binderfs.device_names(root)
        for name in existing:
            if name not in PHONE_BINDER_DEVICES:
                binderfs.remove_device(root, name)
        for name in PHONE_BINDER_DEVICES:
            if name not in existing:
                binderfs.add_device(root, name)
            set_mode(f"{root}/{name}", MODE)
    except BinderfsError as error:
        raise type(error)(str(error).replace(root, path)) from error


def is_transient(error: BaseException) -> bool:
    """Return whether the cause of an error is this process or the system, not a file."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None and cause.errno in TRANSIENT_ERRORS


def unmount_all(path: str) -> None:
    """Unmount everything that is mounted on a directory, if it exists. Raises BinderfsError."""
    parent = os.lstat(os.path.dirname(path)).st_dev
    with contextlib.suppress(FileNotFoundError):
        while os.lstat(path).st_dev != parent:
            binderfs.unmount(path, lazy=True)
