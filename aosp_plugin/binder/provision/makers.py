"""The ways in which one node is made: an empty file, a stand-in, a node of a binderfs with a link to it.

A maker looks at one name, makes what belongs there, and removes it. Which names there are to be, and when a
binderfs is mounted for them, is ``provision``'s matter; whose they are is in the ``ledger``.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
from typing import TYPE_CHECKING, ClassVar, Protocol

from aosp_plugin.binder.driver.binderfs import FILESYSTEM
from aosp_plugin.binder.errors import DeviceExistsError, HostError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.binder.driver.binderfs import BinderfsMount


class ProvisionMethod(enum.StrEnum):
    """How nodes are made."""

    BINDERFS = "binderfs"
    """Real ones, in a binderfs of our own, with a link to each in the device directory."""
    MKNOD = "mknod"
    """Stand-ins: character devices that are not binder's."""
    FILE = "file"
    """Empty plain files, which need no root."""


class State(enum.Enum):
    """What stands in the place of a node that is wanted."""

    ABSENT = enum.auto()
    UNFINISHED = enum.auto()
    """Part of what is made, or with another mode."""
    READY = enum.auto()
    FOREIGN = enum.auto()


class Binderfs(Protocol):
    """What is needed of a binderfs: the module ``binderfs``, or a stand-in for it in tests."""

    def mount(self, directory: str, max_devices: int | None = None, *, again: bool = False) -> None:
        """As ``binderfs.mount``."""

    def unmount(self, directory: str) -> None:
        """As ``binderfs.unmount``."""

    def mount_at(self, directory: str) -> BinderfsMount | None:
        """As ``binderfs.mount_at``."""

    def devices_in(self, directory: str) -> list[str]:
        """As ``binderfs.devices_in``."""

    def add_device(self, directory: str, name: str) -> int:
        """As ``binderfs.add_device``."""

    def remove_device(self, directory: str, name: str) -> bool:
        """As ``binderfs.remove_device``."""


def choose_method(filesystems: str, *, root: bool) -> ProvisionMethod:
    """Choose the best way that a host offers, given the text of its /proc/filesystems."""
    if not root:
        return ProvisionMethod.FILE
    known = {line.rpartition("\t")[2] for line in filesystems.splitlines()}
    return ProvisionMethod.BINDERFS if FILESYSTEM in known else ProvisionMethod.MKNOD


def detect_method() -> ProvisionMethod:
    """Choose the best way that this host offers to this process."""
    with open("/proc/filesystems", encoding="ascii") as file:
        return choose_method(file.read(), root=os.geteuid() == 0)


@contextlib.contextmanager
def telling(what: str, advice: str = "run as root, or choose a directory of your own") -> Iterator[None]:
    """Turn an OSError into the error that tells a person what could not be done; ``advice`` is for want of a right."""
    try:
        yield
    except FileExistsError as error:
        raise DeviceExistsError(f"can't {what}: the name was taken meanwhile: try again") from error
    except PermissionError as error:
        raise NotPermittedError(f"can't {what}: {error.strerror}: {advice}") from error
    except OSError as error:
        raise HostError(f"can't {what}: {error.strerror}") from error


class FileMaker:
    """Makes empty plain files: all that there is of a node stands in the device directory."""

    _type: ClassVar[int] = stat.S_IFREG
    _number: ClassVar[int] = 0
    _advice: ClassVar[str] = "choose a directory of your own"

    def __init__(self, directory: str, mode: int) -> None:
        self._directory = directory
        self._mode = mode

    def place(self, name: str) -> str:
        """Return the path that is in question for ``name``."""
        return f"{self._directory}/{name}"

    def look(self, name: str) -> State:
        """Say what stands there."""
        try:
            seen = os.lstat(self.place(name))
        except FileNotFoundError:
            return State.ABSENT
        if (stat.S_IFMT(seen.st_mode), seen.st_rdev, seen.st_size) != (self._type, self._number, 0):
            return State.FOREIGN
        return State.READY if stat.S_IMODE(seen.st_mode) == self._mode else State.UNFINISHED

    def make(self, name: str, state: State) -> None:
        """Bring about READY, given the state that was seen. Raises HostError or one of its kinds."""
        path = self.place(name)
        with telling(f"make {path}", self._advice):
            if state is State.ABSENT:
                os.mknod(path, self._type | self._mode, self._number)
            # The umask has its say in mknod, not here.
            os.chmod(path, self._mode)

    def remove(self, name: str, state: State) -> None:
        """Remove it unless it is FOREIGN or ABSENT. Raises HostError or one of its kinds."""
        if state in {State.READY, State.UNFINISHED}:
            with telling(f"remove {self.place(name)}"):
                os.unlink(self.place(name))


class StandInMaker(FileMaker):
    """Makes devices of /dev/null's number (Documentation/admin-guide/devices.txt), which anyone may open."""

    _type = stat.S_IFCHR
    _number = os.makedev(1, 3)
    _advice = "devices need root and CAP_MKNOD, plain files do not"


class LinkMaker:
    """Makes nodes of a binderfs: the node there, and a link to it in the device directory."""

    def __init__(
        self, directory: str, mode: int, mount: str, binderfs: Binderfs, *, mounted: bool, root: str = ""
    ) -> None:
        """``mounted`` says whether the binderfs of these nodes is mounted at ``mount``, not some other one.

        Both paths are the host's, whose files this process sees under ``root``; links have the host's paths.
        """
        self._directory = root + directory
        self._mode = mode
        self._target = mount
        self._mount = root + mount
        self._binderfs = binderfs
        self._mounted = mounted

    def place(self, name: str) -> str:
        """Return the path that is in question for ``name``."""
        link = f"{self._directory}/{name}"
        return link if os.path.lexists(link) else f"{self._mount}/{name}"

    def look(self, name: str) -> State:
        """Say what stands there, link and node taken together."""
        node, mode = f"{self._mount}/{name}", None
        # Unmounted, the directory's files are not ours to judge.
        if self._mounted:
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(os.lstat(node).st_mode)
        try:
            linked = os.readlink(f"{self._directory}/{name}")
        except FileNotFoundError:
            return State.ABSENT if mode is None else State.UNFINISHED
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: no link
                raise
            return State.FOREIGN
        if linked != f"{self._target}/{name}":
            return State.FOREIGN
        return State.READY if mode == self._mode else State.UNFINISHED

    def make(self, name: str, state: State) -> None:
        """Bring about READY, given the state that was seen. Raises HostError or one of its kinds."""
        node, link = f"{self._mount}/{name}", f"{self._directory}/{name}"
        # What was ABSENT is made without another look: whoever has taken the name meanwhile is found out.
        if state is State.ABSENT or not os.path.lexists(node):
            self._binderfs.add_device(self._mount, name)
        try:
            with telling(f"make {link}"):
                os.chmod(node, self._mode)
                # Last, since those who watch the directory take the node for usable from here on.
                if state is State.ABSENT or not os.path.lexists(link):
                    os.symlink(f"{self._target}/{name}", link)
        except DeviceExistsError:
            self._binderfs.remove_device(self._mount, name)
            raise

    def remove(self, name: str, state: State) -> None:
        """Remove the link unless it is another's, and the node. Raises HostError or one of its kinds."""
        if state is not State.FOREIGN:
            link = f"{self._directory}/{name}"
            with telling(f"remove {link}"), contextlib.suppress(FileNotFoundError):
                os.unlink(link)
        if self._mounted:
            self._binderfs.remove_device(self._mount, name)


Maker = FileMaker | LinkMaker
"""One for each set of nodes; a StandInMaker is a FileMaker."""
