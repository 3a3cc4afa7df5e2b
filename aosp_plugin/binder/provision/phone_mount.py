"""The directory and the binderfs of one phone: who may change the path, what is mounted; mounting and unmounting.

A binderfs is filled before it is attached (``binderfs.create_mount``), so that a directory has either a complete
binderfs or none, whenever the process is killed. All paths are paths of this process.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator

from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES, PHONE_PREFIX
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError
from aosp_plugin.binder.driver.host import BINDERFS, TRANSIENT_ERRORS, Host, HostError, MountPoint

MODE = 0o666
"""Android's processes run as many users: system (1000), and one for each app."""

SOURCE = "aosp-phone"
"""The source of the mounts for pods that get a phone through the device plugin API. A binderfs with neither this source
nor the next one is not the plugin's: it may have ``stats=global``, which shows the transactions of all phones."""

CLAIM_SOURCE = "aosp-claim"
"""The source of the mounts for ResourceClaims. It tells for which API a phone was mounted."""


class ForeignMountError(BinderfsError):
    """Another file system, or a file, is in place of the plugin's mount."""


class PropagationError(BinderfsError):
    """What is mounted here does not appear on the host: a container would get the previous binderfs of the phone."""


@contextlib.contextmanager
def phones_below(host: Host, directory: str) -> Iterator[str]:
    """Yield the host's directory of phones as a path of this process without links. Raises HostError, not OSError.

    It also raises HostError if others than root can change where the path leads, or the names in the directory: a
    mount, and a directory that is removed, would be elsewhere.
    """
    with translated_errors(f"provision phones in {directory}"):
        links: set[str] = set()
        resolved = host.resolve(directory, links)
        for path in (*links, f"{resolved}/{PHONE_PREFIX}"):
            _require_of_root(host.process_path(path))
        yield host.process_path(resolved)


def _require_of_root(path: str) -> None:
    """Require that root, or the user of this process, alone can change each entry of a path that has no links.

    In a directory with the sticky bit, such as /tmp, others cannot change root's files, but create new ones. Raises
    HostError and OSError.
    """
    owners = {0, os.geteuid()}
    parents = [*itertools.accumulate(path.split("/")[:-1], "{}/{}".format)]
    for parent, entry in itertools.pairwise((*(each or "/" for each in parents), path)):
        try:
            directory = os.stat(parent)
        except FileNotFoundError:
            return
        if directory.st_uid in owners and not directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            continue
        with contextlib.suppress(FileNotFoundError):
            if directory.st_uid in owners and directory.st_mode & stat.S_ISVTX and os.lstat(entry).st_uid in owners:
                continue
        raise HostError(
            f"others than root can change {parent}: chown root and chmod go-w it, or choose another directory"
        )


@contextlib.contextmanager
def translated_errors(operation: str) -> Iterator[None]:
    """Raise HostError instead of an OSError. ``operation`` completes "cannot ..."."""
    try:
        yield
    except OSError as error:
        cause = f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}"
        remedy = ": run as root" if isinstance(error, PermissionError) else ""
        raise HostError(f"cannot {operation}: {cause}{remedy}") from error


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


def own_mounts(table: Iterable[MountPoint]) -> dict[str, dict[int, str]]:
    """Return the sources of the plugin's binderfs mounts by directory and st_dev.

    A bind mount of one phone in place of another one is not the plugin's: both would have the same binder devices.
    """
    own: dict[str, dict[int, str]] = {}
    first: dict[tuple[str, int], str] = {}
    for mount in table:
        if mount.type == BINDERFS and mount.source in {SOURCE, CLAIM_SOURCE}:
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
            _set_mode(f"{root}/{name}")
    except BinderfsError as error:
        raise type(error)(str(error).replace(root, path)) from error


def _set_mode(path: str) -> None:
    """Give the file the mode ``MODE`` if it has another one, regardless of the umask.

    Never follows a link: a user who can write to the directory could replace the file with a link to a file of root.
    """
    if stat.S_IMODE(os.lstat(path).st_mode) == MODE:
        return
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", MODE)  # what glibc does from 2.32 on for AT_SYMLINK_NOFOLLOW
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)


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
