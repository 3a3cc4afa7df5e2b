"""Operations on a binderfs: mount, unmount, add and remove a binder device, and probe one.

A binderfs is a file system that contains binder devices; each mount is an instance of its own. An ioctl on its file
``binder-control`` adds a device. Sources: include/uapi/linux/android/binderfs.h, drivers/android/binderfs.c and
Documentation/admin-guide/binderfs.rst of the kernel.
"""

import contextlib
import ctypes
import enum
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

from aosp_plugin.binder.driver import mounts
from aosp_plugin.binder.driver.mounts import MountPoint
from aosp_plugin.binder.host_errors import (
    BinderfsError,
    BinderMissingError,
    DeviceExistsError,
    DeviceNameError,
    DevicesExhaustedError,
    NotPermittedError,
)

CONTROL_NAME = "binder-control"
"""The control file of a binderfs, whose ioctl adds binder devices. Never allocated."""

BINDER_CTL_ADD = 0xC1086201
"""_IOWR('b', 1, struct binderfs_device), include/uapi/linux/android/binderfs.h."""

BINDER_VERSION = 0xC0046209
"""_IOWR('b', 9, struct binder_version), include/uapi/linux/android/binder.h."""

PROTOCOL_VERSION = 8
"""BINDER_CURRENT_PROTOCOL_VERSION of the same file; 7 is the 32-bit protocol of old kernels."""

LONGEST_FILE_NAME = 255
"""BINDERFS_MAX_NAME, in bytes. The kernel truncates a longer name silently."""

ALL_MINORS = 1 << 20
"""Minor numbers of all binderfs mounts together, 1 << MINORBITS. Each mount's binder-control uses one of them."""

C, RUST = "c", "rust"

MAGIC = {0x6C6F6F70: C, 0x6C6F6F71: RUST}
"""The implementation of the driver by ``f_type`` of statfs(2) (include/uapi/linux/magic.h BINDERFS_SUPER_MAGIC;
drivers/android/binder/rust_binder_internal.h RUST_BINDERFS_SUPER_MAGIC)."""

_STATFS_SIZE = 256
"""Bytes, more than ``struct statfs`` has on any architecture."""

_DEVICE = struct.Struct("256sII")
"""struct binderfs_device: the name, and the major and minor number that the kernel returns."""

_VERSION = struct.Struct("i")
"""struct binder_version: a signed 32-bit number."""

_MS_REMOUNT = 32  # include/uapi/linux/mount.h
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # include/linux/fs.h: unmount lazily; fail if the mount point is a link


class Step(enum.Enum):
    """The operation that failed, as a verb for the error text."""

    MOUNT = "mount a binderfs on"
    ATTACH = "attach a binderfs to"
    UNMOUNT = "unmount"
    CONTROL = "open"
    ADD = "create"
    REMOVE = "remove"
    RECREATE = "recreate"
    PROBE = "probe"


_NO_ROOT = (NotPermittedError, "requires CAP_SYS_ADMIN: run as root on the host or in a privileged container")
_NO_OPEN = (NotPermittedError, "denied by the device cgroup: run on the host or in a privileged container")
_BAD_MODE = (NotPermittedError, "denied by its mode (run as root), or its file system is mounted with nodev")
_NO_BINDERFS = "this kernel has no binderfs: modprobe binder_linux, or boot a kernel with CONFIG_ANDROID_BINDERFS"
_NO_DRIVER = "no driver for it (a binderfs device opens in its own binderfs only; a copy of it never opens)"
_NO_MINOR = (
    f"all {ALL_MINORS} minor numbers of the binderfs mounts are in use; what lists those with the most, on the host: "
    "grep -c ' - binder ' /proc/[0-9]*/mountinfo | sort -t: -nk2 | tail -3"
)
_NO_CONTROL = "not the control file of a binderfs: mount one with 'mount -t binder binder DIRECTORY'"
_NOT_BINDER = (BinderfsError, "not a device of the binder driver")
_COVERED = (BinderfsError, "it is a mount point: unmount it first")
_READ_ONLY = (BinderfsError, "its binderfs is mounted read-only here: mount it read-write")

_REFUSALS: dict[tuple[Step, int], tuple[type[BinderfsError], str]] = {
    (Step.MOUNT, errno.ENODEV): (BinderMissingError, _NO_BINDERFS),
    (Step.MOUNT, errno.EPERM): _NO_ROOT,
    (Step.MOUNT, errno.EACCES): _NO_ROOT,
    (Step.MOUNT, errno.EINVAL): (BinderfsError, f"invalid mount options: max= must be 0 to {ALL_MINORS}"),
    (Step.MOUNT, errno.ENOSPC): (DevicesExhaustedError, _NO_MINOR),
    (Step.MOUNT, errno.ENOSYS): (BinderfsError, "requires Linux 5.2 (fsopen)"),
    (Step.ATTACH, errno.EPERM): _NO_ROOT,
    (Step.ATTACH, errno.ENOSPC): (BinderfsError, "the limit of mounts is reached: raise the sysctl fs.mount-max"),
    (Step.UNMOUNT, errno.EPERM): _NO_ROOT,
    (Step.UNMOUNT, errno.EBUSY): (BinderfsError, "a process has one of its devices open: end it and retry"),
    (Step.UNMOUNT, errno.EINVAL): (BinderfsError, "not a mount point"),
    (Step.CONTROL, errno.EACCES): _BAD_MODE,
    (Step.CONTROL, errno.EPERM): _NO_OPEN,
    (Step.CONTROL, errno.ENOENT): (BinderfsError, _NO_CONTROL),
    (Step.ADD, errno.EEXIST): (DeviceExistsError, "the name is in use: choose another one, or remove the file"),
    (Step.ADD, errno.EACCES): (DeviceNameError, "invalid name (rejected by the kernel)"),
    (Step.ADD, errno.EINVAL): (BinderfsError, _NO_CONTROL),
    (Step.ADD, errno.ENOTTY): (BinderfsError, _NO_CONTROL),
    (Step.REMOVE, errno.EACCES): (NotPermittedError, "requires root"),
    (Step.REMOVE, errno.EPERM): (NotPermittedError, "the kernel does not allow the removal of this file"),
    (Step.REMOVE, errno.EBUSY): _COVERED,
    (Step.REMOVE, errno.EROFS): _READ_ONLY,
    (Step.RECREATE, errno.ENOENT): (BinderfsError, "it does not exist: create it first"),
    (Step.RECREATE, errno.EACCES): (NotPermittedError, "requires root"),
    (Step.RECREATE, errno.EPERM): (NotPermittedError, "requires root"),
    (Step.RECREATE, errno.EBUSY): _COVERED,
    (Step.RECREATE, errno.EROFS): _READ_ONLY,
    (Step.PROBE, errno.EPERM): _NO_OPEN,
    (Step.PROBE, errno.EACCES): _BAD_MODE,
    (Step.PROBE, errno.ENXIO): (BinderMissingError, _NO_DRIVER),
    (Step.PROBE, errno.ENODEV): (BinderMissingError, _NO_DRIVER),
    (Step.PROBE, errno.ENOTTY): _NOT_BINDER,
    (Step.PROBE, errno.EINVAL): _NOT_BINDER,
}


def refusal(step: Step, number: int, path: str) -> BinderfsError:
    """Return the error for the kernel's ``number`` (an errno) at ``step`` on ``path``.

    The meaning of each number was measured on Linux 6.1. Other numbers get the system's own text.
    """
    kind, text = _REFUSALS.get((step, number), (BinderfsError, os.strerror(number)))
    return kind(f"cannot {step.value} {path}: {text}")


@contextlib.contextmanager
def refusals(step: Step, path: str) -> Iterator[None]:
    """Raise ``refusal`` instead of an OSError, which becomes its cause."""
    try:
        yield
    except OSError as error:
        raise refusal(step, error.errno or 0, path) from error


def exhausted(path: str, count: int, max_devices: int | None) -> DevicesExhaustedError:
    """Return the error for ENOSPC at the creation of ``path`` in a binderfs that contains ``count`` devices.

    The kernel returns the same errno for both limits. The comparison with ``max_devices`` (max=) distinguishes them.
    """
    if max_devices is not None and count >= max_devices:
        text = f"the mount's max={max_devices} is reached: remount it with a larger max="
    else:
        limit = "an unknown max=" if max_devices is None else f"max={max_devices}"
        text = (
            f"the mount contains {count} devices of {limit}: remove binder devices elsewhere, or end the processes "
            f"that have removed devices open, because {_NO_MINOR}"
        )
    return DevicesExhaustedError(f"cannot create {path}: {text}")


def add_request(name: str) -> bytearray:
    """Pack the argument of BINDER_CTL_ADD, in which the kernel returns the device number.

    Raises DeviceNameError for a name that the kernel would reject (EACCES), truncate or misread.
    """
    raw = os.fsencode(name)
    if not raw or len(raw) > LONGEST_FILE_NAME or raw in {b".", b".."} or b"/" in raw or b"\0" in raw:
        raise DeviceNameError(
            f"invalid device name {name!r}: 1 to {LONGEST_FILE_NAME} bytes, no '/' or NUL, not '.' or '..'"
        )
    return bytearray(_DEVICE.pack(raw, 0, 0))


def add_device(directory: str, name: str) -> int:
    """Create the device ``name`` in the binderfs at ``directory`` and return its device number (st_rdev).

    Its owner is root, its mode 0600. Raises DeviceExistsError, DeviceNameError, DevicesExhaustedError,
    NotPermittedError, or BinderfsError for any other failure.
    """
    request, path = add_request(name), f"{directory}/{name}"
    control = open_control(directory)
    try:
        fcntl.ioctl(control, BINDER_CTL_ADD, request)
    except OSError as error:
        number = error.errno or 0
        if number == errno.ENOSPC and not os.path.lexists(path):
            limit = mount_at(directory)
            raise exhausted(path, len(device_names(directory)), limit and limit.max_devices) from error
        # A full mount returns ENOSPC before the kernel checks whether the name exists.
        raise refusal(Step.ADD, errno.EEXIST if number == errno.ENOSPC else number, path) from error
    finally:
        os.close(control)
    # Read on success only: on failure the kernel writes the number of a minor that it frees again.
    _, major, minor = _DEVICE.unpack(request)
    return os.makedev(major, minor)


def open_control(directory: str) -> int:
    """Open the control file of the binderfs at ``directory``. The caller closes the descriptor.

    Raises NotPermittedError, or BinderfsError for any other failure.
    """
    control = f"{directory}/{CONTROL_NAME}"
    with refusals(Step.CONTROL, control):
        # The ioctl requires read permission only.
        return os.open(control, os.O_RDONLY | os.O_CLOEXEC)


def remove_device(directory: str, name: str) -> bool:
    """Unlink the device ``name`` and return whether it existed. Processes that have it open keep it.

    Raises NotPermittedError, or BinderfsError for any other failure.
    """
    path = f"{directory}/{name}"
    with refusals(Step.REMOVE, path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
    return True


def device_names(directory: str) -> list[str]:
    """List the devices of the binderfs at ``directory``: all files except directories and its control file."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name != CONTROL_NAME and not entry.is_dir()]


def binder_version(path: str) -> int:
    """Open the device and return the protocol version of its driver, ``PROTOCOL_VERSION`` on current kernels.

    Safe for a device in use. Raises NotPermittedError if this process may not open it, which says nothing about its
    health; BinderMissingError if it has no driver; BinderfsError for any other failure. The OSError is the cause.
    """
    version = bytearray(_VERSION.size)
    with refusals(Step.PROBE, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, BINDER_VERSION, version)
        finally:
            os.close(descriptor)
    number: int = _VERSION.unpack(version)[0]
    return number


def mount_at(directory: str) -> MountPoint | None:
    """Return the binderfs whose root is ``directory``, or None."""
    try:
        path, device = os.path.realpath(directory), os.stat(directory).st_dev
    except FileNotFoundError:
        return None
    place = (path, device, mounts.BINDERFS)
    # The comparison of the devices excludes a binderfs that another mount covers.
    table = mounts.parse(mounts.read_table())
    return next((mount for mount in table if (mount.directory, mount.device, mount.type) == place), None)


def implementation(path: str) -> str:
    """Return c or rust for a path in a binderfs; empty for another file system. Raises OSError.

    Since Linux 6.18 there is a driver in Rust, with the same interface and the same name of the file system.
    """
    import ctypes  # noqa: PLC0415 - see call

    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    call("statfs", os.fsencode(path), buffer)
    return MAGIC.get(ctypes.c_long.from_buffer(buffer).value, "")


def mount(
    directory: str, max_devices: int | None = None, *, source: str = mounts.BINDERFS, remount: bool = False
) -> None:
    """Mount a new, empty binderfs on ``directory`` with max= ``max_devices`` (None: the kernel's default).

    ``remount`` remounts the existing one with a new max=; its source stays. Raises BinderMissingError,
    NotPermittedError, DevicesExhaustedError, or BinderfsError for any other failure.
    """
    # No mount flags: with nodev, every open of a device would fail with EACCES.
    options = b"" if max_devices is None else b"max=%d" % max_devices
    kind = mounts.BINDERFS.encode()
    with refusals(Step.MOUNT, directory):
        call("mount", os.fsencode(source), os.fsencode(directory), kind, _MS_REMOUNT if remount else 0, options)


def unmount(directory: str, *, lazy: bool = False) -> None:
    """Unmount the topmost file system at ``directory``, a binderfs.

    ``lazy`` also does so if a process has one of its devices open; the process keeps it, as in a container. Raises
    NotPermittedError, or BinderfsError for any other failure.
    """
    with refusals(Step.UNMOUNT, directory):
        call("umount2", os.fsencode(directory), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))


def call(function: str, *arguments: bytes | int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library that returns -1 after an error, otherwise its result. Raises OSError."""
    import ctypes  # noqa: PLC0415 - 1.4 MB, and only phones and DRA drivers need it

    # A long fits the numbers, flags and descriptors of all these system calls.
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*converted)
    if result < 0:
        raise OSError(ctypes.get_errno(), function)
    return result
