"""Detached binderfs mounts: created without a path, filled, and attached to a directory when they are complete.

A detached mount belongs to its file descriptor. If the process is killed before it attaches the mount, the kernel drops
it, so that no path ever leads to an incomplete binderfs. ``mount(2)`` and a move (MS_MOVE) would not do: the kernel
refuses to move a mount whose parent is shared (fs/namespace.c ``do_move_mount``), as / is on hosts with systemd.

The system calls exist since Linux 5.2 (fs/fsopen.c, fs/namespace.c). Their numbers are the same on x86_64 and arm64
(include/uapi/asm-generic/unistd.h, arch/x86/entry/syscalls/syscall_64.tbl), the other constants are in
include/uapi/linux/mount.h.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from aosp_plugin.binder.driver import mounts
from aosp_plugin.binder.driver.binderfs import Step, call, refusals

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100  # include/uapi/linux/fcntl.h


def check_mountable(directory: str) -> None:
    """Check that the kernel has binderfs and lets this process mount it, which ``directory`` is for. Mounts nothing.

    Raises as ``create_mount``. Before Linux 5.2, which cannot tell, it raises nothing.
    """
    with refusals(Step.MOUNT, directory), contextlib.ExitStack() as stack:
        try:
            _open_file_system(stack)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise


@contextlib.contextmanager
def create_mount(directory: str, source: str) -> Iterator[int]:
    """Create a detached binderfs with this ``source``, which is to be attached to ``directory``; yield its descriptor.

    /proc/self/fd/<descriptor> is its root directory. A mount that is not attached vanishes at the end of the block.
    Raises BinderMissingError, NotPermittedError, DevicesExhaustedError, or BinderfsError for any other failure.
    """
    with contextlib.ExitStack() as stack:
        with refusals(Step.MOUNT, directory):
            file_system = _open_file_system(stack)
            call("syscall", _FSCONFIG, file_system, _FSCONFIG_SET_STRING, b"source", os.fsencode(source), 0)
            # Without mount flags: with nodev, every open of a device would fail with EACCES.
            call("syscall", _FSCONFIG, file_system, _FSCONFIG_CMD_CREATE, None, None, 0)
            mount = call("syscall", _FSMOUNT, file_system, _FSMOUNT_CLOEXEC, 0)
            stack.callback(os.close, mount)
        yield mount


def attach(mount: int, directory: str) -> None:
    """Attach a detached mount to ``directory``, which is no link. It covers what is mounted there.

    Raises NotPermittedError, or BinderfsError for any other failure.
    """
    with refusals(Step.ATTACH, directory):
        call("syscall", _MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(directory), _MOVE_MOUNT_F_EMPTY_PATH)


def _open_file_system(stack: contextlib.ExitStack) -> int:
    descriptor = call("syscall", _FSOPEN, mounts.BINDERFS.encode(), _FSOPEN_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor
