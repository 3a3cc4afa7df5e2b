"""A clean node for a container that is about to start: a new one is made, and takes the old one's name.

A node remembers the user of its first context manager for as long as it lives, and tells every other user EPERM
(drivers/android/binder.c ``binder_ioctl_set_ctx_mgr``); a process of the last tenant that still holds it stays in its
context, next to the new tenant's processes. Neither can be undone on a node; a new one has a context of its own.

The new node is made under a temporary name and then renamed over the old one, which a binderfs allows
(drivers/android/binderfs.c ``binderfs_rename``). So there is no moment without a node of that name, and a crash leaves
a temporary node at most, which the next renewal or ``sweep`` removes. The other way, to unlink and make again, loses
the node by a crash between the two; and where ``max=`` is reached it loses it as well while a process holds the old
one, whose place is not free before that process ends.

What changes is the node's minor and inode. Its file system does not, so that for ``health`` it is the node it was. The
name that the driver's logs (binder_logs) give to its context is the temporary one, for good. A listing of the binderfs
that takes more than one getdents (from some 800 nodes on) may miss a node that is renewed meanwhile, as the kernel puts
new files in front; a look at the name does not, nor does a listing of links.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.driver import binderfs as kernel
from aosp_plugin.binder.driver.binderfs import Step
from aosp_plugin.binder.errors import BinderfsError, DevicesExhaustedError, HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.binder.discovery.binder_device import BinderDevice
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.provision.makers import Binderfs

MARK = ",+"
"""What a temporary name begins with; the node's own name follows.

No device prefix begins with a comma (``nodes.name_problem``): no look takes it for a node, or warns of it. Two bytes
leave room for each name that a device ID can have: 63 characters of up to 4 bytes, where a binderfs takes 255.
"""


def renew(node: BinderDevice, host: Host, binderfs: Binderfs = kernel, mode: int | None = None) -> None:
    """Put a new node in the place of ``node``: root's, of this ``mode``; None: with the old one's mode and owner.

    A container that was given a node may change both, so that the old one's are the last tenant's choice.

    Processes that have the old one open keep it, and share no context with the new one. Any failure leaves the old
    node as it was. Raises DevicesExhaustedError where ``max=`` leaves no room for one node more than there are,
    NotPermittedError, or BinderfsError for anything else, as for a node that is not in a binderfs.
    """
    path = _place(node, host)
    with _alone(path.rpartition("/")[0]):
        _replace(path, mode, binderfs)


def sweep(directory: str, host: Host, binderfs: Binderfs = kernel) -> int:
    """Remove what renewals that were killed left in the binderfs at ``directory`` (``BinderDevice.directory``).

    Returns the number of nodes removed. Raises NotPermittedError, or BinderfsError for anything else.
    """
    seen = host.process_path(directory)
    with _alone(seen):
        return sum(binderfs.remove_device(seen, name) for name in binderfs.devices_in(seen) if name.startswith(MARK))


def _place(node: BinderDevice, host: Host) -> str:
    """Return the path of the file itself, as this process sees it; where the node stands may be a link to it."""
    if node.kind is not Kind.BINDERFS:
        raise BinderfsError(f"cannot recreate {node.path}: its kind is {node.kind}, not binderfs")
    with _telling(node.path):
        path = host.resolve(node.path)
    if path.rpartition("/")[0] != node.directory:
        raise BinderfsError(
            f"cannot recreate {node.path}: it is not in the directory of its binderfs: "
            f"mount the whole binderfs, and link to the node, instead of binding that alone"
        )
    return host.process_path(path)


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Keep other renewals and sweeps of this binderfs out meanwhile, those of other processes as well.

    The lock is on binder-control, which no tenant can open. The directory is shown to tenants, and one that held a lock
    on it would keep every container of the host from starting.
    """
    control = kernel.open_control(directory)
    try:
        fcntl.flock(control, fcntl.LOCK_EX)
        yield
    finally:
        os.close(control)


def _replace(path: str, mode: int | None, binderfs: Binderfs) -> None:
    directory, _, name = path.rpartition("/")
    temporary = f"{MARK}{name}"
    new = f"{directory}/{temporary}"
    with _telling(path):
        old = os.lstat(path)
    binderfs.remove_device(directory, temporary)
    try:
        _add(directory, temporary, path, binderfs)
        with _telling(path):
            if mode is None:
                os.chown(new, old.st_uid, old.st_gid)
            os.chmod(new, stat.S_IMODE(old.st_mode) if mode is None else mode)
            os.rename(new, path)
    except BaseException:
        with contextlib.suppress(HostError):
            binderfs.remove_device(directory, temporary)
        raise


def _add(directory: str, temporary: str, path: str, binderfs: Binderfs) -> None:
    try:
        binderfs.add_device(directory, temporary)
    except DevicesExhaustedError as error:
        raise DevicesExhaustedError(
            f"cannot recreate {path}: {error} (room for one more is needed, as the old node stays until the new one is "
            f"there; removed nodes that processes hold open take room as well)"
        ) from error


@contextlib.contextmanager
def _telling(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kernel.refusal(Step.RECREATE, error.errno or 0, path) from error
