"""What a binderfs can be asked to do: be mounted, make a node, remove it, and say whether binder answers.

A binderfs is a file system of binder nodes, and every mount of it is an instance of its own. Its file
``binder-control`` makes further nodes. Sources of the facts here: include/uapi/linux/android/binderfs.h,
drivers/android/binderfs.c and Documentation/admin-guide/binderfs.rst of the kernel. Standard library alone.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import re
import struct
from typing import NamedTuple

from aosp_plugin.binder.errors import (
    BinderfsError,
    BinderMissingError,
    DeviceExistsError,
    DeviceNameError,
    DevicesExhaustedError,
    NotPermittedError,
)

CONTROL_NAME = "binder-control"
"""The control file of a binderfs, whose ioctl creates binder devices. Never allocated."""

FILESYSTEM = "binder"
"""The type that /proc/filesystems and /proc/self/mountinfo give, for the C driver and the Rust one."""

BINDER_CTL_ADD = 0xC1086201
"""_IOWR('b', 1, struct binderfs_device), include/uapi/linux/android/binderfs.h."""

BINDER_VERSION = 0xC0046209
"""_IOWR('b', 9, struct binder_version), include/uapi/linux/android/binder.h."""

PROTOCOL_VERSION = 8
"""BINDER_CURRENT_PROTOCOL_VERSION of the same file; 7 is the 32-bit protocol of old kernels."""

LONGEST_FILE_NAME = 255
"""BINDERFS_MAX_NAME, in bytes. The kernel cuts a longer one without a word."""

ALL_MINORS = 1 << 20
"""Minors of all binderfs mounts together, 1 << MINORBITS; each mount's binder-control takes one as well."""

_DEVICE = struct.Struct("256sII")
"""struct binderfs_device: name, and the major and minor that the kernel writes back."""

_ANSWER = struct.Struct("i")
"""struct binder_version: a signed 32-bit number."""

_MS_REMOUNT = 32  # include/uapi/linux/mount.h
_UMOUNT_NOFOLLOW = 8  # include/linux/fs.h: the mount point must not be a link, which could lead elsewhere

_OCTAL = re.compile(r"\\([0-7]{3})")


class BinderfsMount(NamedTuple):
    """One mounted binderfs."""

    directory: str
    """Where it is mounted, as an absolute path free of links."""
    device: int
    """st_dev of every file in it: changes when it is mounted anew."""
    max_devices: int | None
    """Its ``max=``: nodes it holds at most, binder-control not counted. None if the kernel does not say."""


class Step(enum.Enum):
    """What was tried when the kernel refused, in the words of the error text."""

    MOUNT = "mount a binderfs on"
    UNMOUNT = "unmount"
    CONTROL = "open"
    ADD = "make the node"
    REMOVE = "remove the node"
    RECREATE = "recreate"
    PROBE = "ask the binder driver behind"


_NO_ROOT = (NotPermittedError, "it needs root (CAP_SYS_ADMIN on the host)")
_NO_OPEN = (NotPermittedError, "the device cgroup forbids it: run on the host, or in a privileged container")
_BAD_MODE = (NotPermittedError, "its mode forbids it (run as root), or its file system is mounted with nodev")
_NO_BINDERFS = "this kernel has none: modprobe binder_linux, or boot one with CONFIG_ANDROID_BINDERFS"
_NO_DRIVER = "no driver is behind it (a binderfs node opens in its binderfs only, a copy never does)"
_NO_MINOR = f"the {ALL_MINORS} minors of all binderfs mounts are used up: remove nodes elsewhere"
_NO_CONTROL = "it is not the control file of a binderfs: mount -t binder binder DIRECTORY makes one"
_NOT_BINDER = (BinderfsError, "it is not a node of the binder driver")
_COVERED = (BinderfsError, "something is mounted on it: unmount that first")
_READ_ONLY = (BinderfsError, "its binderfs is mounted read-only here: mount it writable")

_REFUSALS: dict[tuple[Step, int], tuple[type[BinderfsError], str]] = {
    (Step.MOUNT, errno.ENODEV): (BinderMissingError, _NO_BINDERFS),
    (Step.MOUNT, errno.EPERM): _NO_ROOT,
    (Step.MOUNT, errno.EACCES): _NO_ROOT,
    (Step.MOUNT, errno.EINVAL): (BinderfsError, f"the options are refused: max= takes 0 to {ALL_MINORS}"),
    (Step.MOUNT, errno.ENOSPC): (DevicesExhaustedError, _NO_MINOR),
    (Step.UNMOUNT, errno.EPERM): _NO_ROOT,
    (Step.UNMOUNT, errno.EBUSY): (BinderfsError, "a process holds a node of it open: end it, and try again"),
    (Step.UNMOUNT, errno.EINVAL): (BinderfsError, "nothing is mounted there"),
    (Step.CONTROL, errno.EACCES): _BAD_MODE,
    (Step.CONTROL, errno.EPERM): _NO_OPEN,
    (Step.CONTROL, errno.ENOENT): (BinderfsError, _NO_CONTROL),
    (Step.ADD, errno.EEXIST): (DeviceExistsError, "the name is taken: choose another, or remove what is there"),
    (Step.ADD, errno.EACCES): (DeviceNameError, "the kernel does not take this name: choose another"),
    (Step.ADD, errno.EINVAL): (BinderfsError, _NO_CONTROL),
    (Step.ADD, errno.ENOTTY): (BinderfsError, _NO_CONTROL),
    (Step.REMOVE, errno.EACCES): (NotPermittedError, "it needs root"),
    (Step.REMOVE, errno.EPERM): (NotPermittedError, "nobody may remove this file of a binderfs"),
    (Step.REMOVE, errno.EBUSY): _COVERED,
    (Step.REMOVE, errno.EROFS): _READ_ONLY,
    (Step.RECREATE, errno.ENOENT): (BinderfsError, "it is gone: make it first"),
    (Step.RECREATE, errno.EACCES): (NotPermittedError, "it needs root"),
    (Step.RECREATE, errno.EPERM): (NotPermittedError, "it needs root"),
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
    """Return the error that tells a person of the kernel's ``number`` (an errno) at ``step`` on ``path``.

    Which number means what was measured on Linux 6.1; those not listed get the system's own text.
    """
    kind, text = _REFUSALS.get((step, number), (BinderfsError, os.strerror(number)))
    return kind(f"can't {step.value} {path}: {text}")


def exhausted(path: str, held: int, max_devices: int | None) -> DevicesExhaustedError:
    """Return the error for ENOSPC while ``path`` was made in a binderfs that holds ``held`` nodes.

    The kernel says the same for both of its limits; the count against ``max_devices`` (max=) tells them apart.
    """
    if max_devices is not None and held >= max_devices:
        text = f"the mount's max={max_devices} is reached: remount it with a larger max="
    else:
        limit = "an unknown max=" if max_devices is None else f"max={max_devices}"
        text = (
            f"the mount holds {held} nodes of {limit}, so {_NO_MINOR}, or end the processes that hold "
            f"removed nodes open"
        )
    return DevicesExhaustedError(f"can't make the node {path}: {text}")


def add_request(name: str) -> bytearray:
    """Pack the argument of BINDER_CTL_ADD, which the kernel writes the device number back into.

    Raises DeviceNameError for what the kernel refuses (EACCES) and what it would cut short or misread.
    """
    raw = os.fsencode(name)
    if not raw or len(raw) > LONGEST_FILE_NAME or raw in {b".", b".."} or b"/" in raw or b"\0" in raw:
        raise DeviceNameError(
            f"{name!r} can't be a node's name: 1 to {LONGEST_FILE_NAME} bytes, no '/' or NUL, not '.' or '..'"
        )
    return bytearray(_DEVICE.pack(raw, 0, 0))


def add_device(directory: str, name: str) -> int:
    """Make the node ``name`` in the binderfs at ``directory``; return its device number (as in st_rdev).

    It is root's, with mode 0600. Raises DeviceExistsError, DeviceNameError, DevicesExhaustedError,
    NotPermittedError, or BinderfsError for anything else.
    """
    request, path = add_request(name), f"{directory}/{name}"
    control = open_control(directory)
    try:
        fcntl.ioctl(control, BINDER_CTL_ADD, request)
    except OSError as error:
        number = error.errno or 0
        if number == errno.ENOSPC and not os.path.lexists(path):
            limit = mount_at(directory)
            raise exhausted(path, len(devices_in(directory)), limit and limit.max_devices) from error
        # A full mount says ENOSPC before it looks at the name, and a name that is there is there.
        raise refusal(Step.ADD, errno.EEXIST if number == errno.ENOSPC else number, path) from error
    finally:
        os.close(control)
    # On failure the kernel has written a number there too, of a minor that it frees again.
    _, major, minor = _DEVICE.unpack(request)
    return os.makedev(major, minor)


def open_control(directory: str) -> int:
    """Open the control file of the binderfs at ``directory``; return the descriptor, which the caller closes.

    Raises NotPermittedError, or BinderfsError for anything else.
    """
    control = f"{directory}/{CONTROL_NAME}"
    try:
        # Reading rights are enough for the ioctl.
        return os.open(control, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise refusal(Step.CONTROL, error.errno or 0, control) from error


def remove_device(directory: str, name: str) -> bool:
    """Unlink the node ``name``, and say whether it was there. Processes that have it open keep it.

    Raises NotPermittedError, or BinderfsError for anything else.
    """
    path = f"{directory}/{name}"
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refusal(Step.REMOVE, error.errno or 0, path) from error
    return True


def devices_in(directory: str) -> list[str]:
    """List the nodes of the binderfs at ``directory``: all but its directories and its control file."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name != CONTROL_NAME and not entry.is_dir()]


def binder_version(path: str) -> int:
    """Open the node and ask its driver for the protocol it speaks: ``PROTOCOL_VERSION`` where all is well.

    Harmless to a node in use. Raises NotPermittedError where the node may not be opened (which says nothing
    of its health), BinderMissingError where no driver answers, BinderfsError for anything else; the OSError
    is the cause.
    """
    answer = bytearray(_ANSWER.size)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, BINDER_VERSION, answer)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refusal(Step.PROBE, error.errno or 0, path) from error
    version: int = _ANSWER.unpack(answer)[0]
    return version


def binder_mounts(mountinfo: str) -> tuple[BinderfsMount, ...]:
    """Find the binderfs mounts in the text of /proc/self/mountinfo, in its order (proc_pid_mountinfo(5)).

    A bind mount of a single node is one as well: its ``directory`` is the file that it is bound on.
    """
    found = []
    for line in mountinfo.splitlines():
        here, _, there = line.partition(" - ")
        if there.partition(" ")[0] != FILESYSTEM:
            continue
        fields = here.split(" ")
        major, _, minor = fields[2].partition(":")
        options = dict(option.partition("=")[::2] for option in there.split(" ")[-1].split(","))
        limit = options.get("max", "")
        found.append(
            BinderfsMount(
                directory=_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]),
                device=os.makedev(int(major), int(minor)),
                max_devices=int(limit) if limit.isdigit() else None,
            )
        )
    return tuple(found)


def mount_at(directory: str) -> BinderfsMount | None:
    """Return the binderfs that is mounted on ``directory`` itself and on top there, or None."""
    try:
        path, device = os.path.realpath(directory), os.stat(directory).st_dev
    except FileNotFoundError:
        return None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = binder_mounts(file.read())
    # The device decides where something else is mounted on top.
    return next((one for one in found if (one.directory, one.device) == (path, device)), None)


def mount(directory: str, max_devices: int | None = None, *, again: bool = False) -> None:
    """Mount a new, empty binderfs on ``directory``; ``max_devices`` is its max= (None: the kernel's default).

    ``again`` changes max= of the one that is mounted there instead. Raises BinderMissingError,
    NotPermittedError, DevicesExhaustedError, or BinderfsError for anything else.
    """
    # No flags on purpose: nodev would make every open of a node fail with EACCES.
    options = b"" if max_devices is None else b"max=%d" % max_devices
    kind = FILESYSTEM.encode()
    number = _call("mount", kind, os.fsencode(directory), kind, _MS_REMOUNT if again else 0, options)
    if number:
        raise refusal(Step.MOUNT, number, directory)


def unmount(directory: str) -> None:
    """Unmount the binderfs at ``directory``. Raises NotPermittedError, or BinderfsError for anything else."""
    number = _call("umount2", os.fsencode(directory), _UMOUNT_NOFOLLOW)
    if number:
        raise refusal(Step.UNMOUNT, number, directory)


def _call(function: str, *arguments: bytes | int) -> int:
    """Call a function of the C library that returns 0 or sets errno; return that errno, or 0."""
    import ctypes  # noqa: PLC0415 - 1.4 MB that a daemon which only looks at nodes does without

    # An unsigned long fits the flags of both calls.
    given = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    result: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*given)
    return 0 if result == 0 else ctypes.get_errno()
