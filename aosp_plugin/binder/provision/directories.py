"""The directories of phones: who may change them; and the modes of binder devices."""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

from aosp_plugin.binder.devices.sets import PHONE_PREFIX
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError

MODE = 0o666
"""Android's processes run as many users: system (1000), and one for each app."""


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
