"""Operations on a binderfs: mount and unmount it, add and remove a binder device, and probe one.

A binderfs is a file system that contains binder devices; each mount is an instance of its own. An ioctl on its file
``binder-control`` adds a device. Sources: include/uapi/linux/android/binderfs.h, drivers/android/binderfs.c and
Documentation/admin-guide/binderfs.rst of the kernel.

A binderfs is mounted detached: created without a path, filled, and attached to a directory when it is complete. It
belongs to its file descriptor until then. If the process is killed before it attaches the mount, the kernel drops it,
so that no path ever leads to an incomplete binderfs. ``mount(2)`` and a move (MS_MOVE) would not do: the kernel refuses
to move a mount whose parent is shared (fs/namespace.c ``do_move_mount``), as / is on hosts with systemd.

These system calls exist since Linux 5.2 (fs/fsopen.c, fs/namespace.c). Their numbers are the same on x86_64 and arm64
(include/uapi/asm-generic/unistd.h, arch/x86/entry/syscalls/syscall_64.tbl), the other constants are in
include/uapi/linux/mount.h.
"""

import contextlib
import ctypes
import enum
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

from aosp_plugin.binder.driver.host import BINDERFS, MODULE_NAMES, MODULES, HostError

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

_DEVICE = struct.Struct("256sII")
"""struct binderfs_device: the name, and the major and minor number that the kernel returns."""

_VERSION = struct.Struct("i")
"""struct binder_version: a signed 32-bit number."""

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100  # include/uapi/linux/fcntl.h
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # include/linux/fs.h: unmount lazily; fail if the mount point is a link


class BinderfsError(HostError):
    """An operation on a binderfs or a binder device failed."""


class NotPermittedError(BinderfsError):
    """The process lacks a permission: root, CAP_SYS_ADMIN, or a rule in its device cgroup."""


class DevicesExhaustedError(BinderfsError):
    """No further binder device can be created: all minor numbers are in use, or the mount's ``max=`` is reached."""


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
_BUILT_WITHOUT = (
    "this kernel has no binderfs: its driver is loaded, and was built without CONFIG_ANDROID_BINDERFS; see "
    'docs/hosts.md, "A driver without binderfs"'
)
_NO_DRIVER = "no driver for it (a binderfs device opens in its own binderfs only; a copy of it never opens)"
_NO_MINOR = (
    f"all {ALL_MINORS} minor numbers of the binderfs mounts are in use; list those with the most, on the host, by: "
    "grep -c ' - binder ' /proc/[0-9]*/mountinfo | sort -t: -nk2 | tail -3"
)
_MAX_REACHED = (
    "the max= of the mount is reached (remount it with a larger one; removed devices that processes hold open count)"
)
_NO_CONTROL = "not the control file of a binderfs: mount one with 'mount -t binder binder DIRECTORY'"
_NOT_BINDER = (BinderfsError, "not a device of the binder driver")
_COVERED = (BinderfsError, "it is a mount point: unmount it first")
_READ_ONLY = (BinderfsError, "its binderfs is mounted read-only here: mount it read-write")

_KERNEL_ERRORS: dict[tuple[Step, int], tuple[type[BinderfsError], str]] = {
    (Step.MOUNT, errno.ENODEV): (BinderfsError, _NO_BINDERFS),
    (Step.MOUNT, errno.EPERM): _NO_ROOT,
    (Step.MOUNT, errno.EACCES): _NO_ROOT,
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
    (Step.ADD, errno.EEXIST): (BinderfsError, "the name is in use: choose another one, or remove the file"),
    (Step.ADD, errno.EACCES): (BinderfsError, "invalid name (rejected by the kernel)"),
    (Step.ADD, errno.ENOSPC): (DevicesExhaustedError, f"{_MAX_REACHED}, or {_NO_MINOR}"),
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
    (Step.PROBE, errno.ENXIO): (BinderfsError, _NO_DRIVER),
    (Step.PROBE, errno.ENODEV): (BinderfsError, _NO_DRIVER),
    (Step.PROBE, errno.ENOTTY): _NOT_BINDER,
    (Step.PROBE, errno.EINVAL): _NOT_BINDER,
}


def kernel_error(step: Step, code: int, path: str) -> BinderfsError:
    """Return the error for the errno ``code`` of the kernel at ``step`` on ``path``.

    The meaning of each code was measured on Linux 6.1. Other codes get the text of the system.
    """
    kind, text = _KERNEL_ERRORS.get((step, code), (BinderfsError, os.strerror(code)))
    is_loaded = any(os.path.exists(f"{MODULES}/{name}") for name in MODULE_NAMES)
    if (step, code) == (Step.MOUNT, errno.ENODEV) and is_loaded:
        text = _BUILT_WITHOUT
    return kind(f"cannot {step.value} {path}: {text}")


@contextlib.contextmanager
def kernel_errors(step: Step, path: str) -> Iterator[None]:
    """Raise ``kernel_error`` instead of an OSError, which becomes its cause."""
    try:
        yield
    except OSError as error:
        raise kernel_error(step, error.errno or 0, path) from error


def add_request(name: str) -> bytearray:
    """Pack the argument of BINDER_CTL_ADD, in which the kernel returns the device number.

    Raises BinderfsError for a name that the kernel would truncate.
    """
    raw = os.fsencode(name)
    if len(raw) > LONGEST_FILE_NAME:
        raise BinderfsError(f"invalid device name {name!r}: at most {LONGEST_FILE_NAME} bytes")
    return bytearray(_DEVICE.pack(raw, 0, 0))


def add_device(directory: str, name: str) -> int:
    """Create the device ``name`` in the binderfs at ``directory`` and return its device number (st_rdev).

    Its owner is root, its mode 0600. Raises DevicesExhaustedError, NotPermittedError, or BinderfsError for
    any other failure.
    """
    request = add_request(name)
    control = open_control(directory)
    try:
        with kernel_errors(Step.ADD, f"{directory}/{name}"):
            fcntl.ioctl(control, BINDER_CTL_ADD, request)
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
    with kernel_errors(Step.CONTROL, control):
        # The ioctl requires read permission only.
        return os.open(control, os.O_RDONLY | os.O_CLOEXEC)


def remove_device(directory: str, name: str) -> None:
    """Unlink the device ``name`` if it exists. Processes that have it open keep it.

    Raises NotPermittedError, or BinderfsError for any other failure.
    """
    path = f"{directory}/{name}"
    with kernel_errors(Step.REMOVE, path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def device_names(directory: str) -> list[str]:
    """List the devices of the binderfs at ``directory``: all files except directories and its control file."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name != CONTROL_NAME and not entry.is_dir()]


def binder_version(path: str) -> int:
    """Open the device and return the protocol version of its driver, ``PROTOCOL_VERSION`` on current kernels.

    Safe for a device in use. Raises NotPermittedError if this process may not open it, which says nothing about its
    health; BinderfsError for any other failure. The OSError is the cause.
    """
    version = bytearray(_VERSION.size)
    with kernel_errors(Step.PROBE, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, BINDER_VERSION, version)
        finally:
            os.close(descriptor)
    protocol: int = _VERSION.unpack(version)[0]
    return protocol


def check_mountable(directory: str) -> None:
    """Check that the kernel has binderfs and lets this process mount it; errors name ``directory``. Mounts nothing.

    Raises the errors of ``create_mount``.
    """
    with kernel_errors(Step.MOUNT, directory), contextlib.ExitStack() as stack:
        _open_file_system(stack)


@contextlib.contextmanager
def create_mount(directory: str, source: str) -> Iterator[int]:
    """Create a detached binderfs with this ``source``, which is to be attached to ``directory``; yield its descriptor.

    /proc/self/fd/<descriptor> is its root directory. A mount that is not attached vanishes at the end of the block.
    Raises NotPermittedError, DevicesExhaustedError, or BinderfsError for any other failure.
    """
    with contextlib.ExitStack() as stack:
        with kernel_errors(Step.MOUNT, directory):
            file_system = _open_file_system(stack)
            call("syscall", _FSCONFIG, file_system, _FSCONFIG_SET_STRING, b"source", os.fsencode(source), 0)
            # Without mount flags: with nodev, every open of a device would fail with EACCES.
            call("syscall", _FSCONFIG, file_system, _FSCONFIG_CMD_CREATE, None, None, 0)
            mount = call("syscall", _FSMOUNT, file_system, _FSMOUNT_CLOEXEC, 0)
            stack.callback(os.close, mount)
        yield mount


def attach(mount: int, directory: str) -> None:
    """Attach a detached mount to ``directory``, which must not be a link. It covers what is mounted there.

    Raises NotPermittedError, or BinderfsError for any other failure.
    """
    with kernel_errors(Step.ATTACH, directory):
        call("syscall", _MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(directory), _MOVE_MOUNT_F_EMPTY_PATH)


def _open_file_system(stack: contextlib.ExitStack) -> int:
    descriptor = call("syscall", _FSOPEN, BINDERFS.encode(), _FSOPEN_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def unmount(directory: str, *, lazy: bool = False) -> None:
    """Unmount the topmost file system at ``directory``, a binderfs.

    ``lazy`` also does so if a process has one of its devices open; the process keeps it, as in a container. Raises
    NotPermittedError, or BinderfsError for any other failure.
    """
    with kernel_errors(Step.UNMOUNT, directory):
        call("umount2", os.fsencode(directory), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))


def call(function: str, *arguments: bytes | int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call a function of the C library that returns -1 after an error, otherwise its result. Raises OSError."""
    # A long fits the numbers, flags and descriptors of all these system calls.
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*converted)
    if result < 0:
        raise OSError(ctypes.get_errno(), function)
    return result
