"""Nodes made for tests: which are missing, how they are made, and how to remove those and no others.

What is about to be made is recorded first, in a ledger: a hidden file in the device directory itself. Whoever
may make nodes there may write it, root or not, and it goes when they go (/dev is new at every boot). So a run
that was killed can be resumed or undone, and ``delete`` needs no guess at what is ours: a name is ours
if it is in the ledger *and* still what was made (a link into our binderfs, a null device, an empty file).
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import json
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aosp_plugin.binder import binderfs as kernel
from aosp_plugin.binder.nodes import Kind, name_problem, natural_key
from aosp_plugin.errors import (
    BinderfsError,
    DeviceDirectoryError,
    HostError,
    NodeExistsError,
    NotPermittedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    Progress = Callable[[int, int], None]
    """Called after each node with the number done and the number to do."""

LEDGER = ".aosp-binder-nodes.json"
"""Name of the ledger in the device directory."""

_NULL = os.makedev(1, 3)
"""The number of a stand-in: /dev/null's (Documentation/admin-guide/devices.txt), which anyone may open."""


class Way(enum.StrEnum):
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


@dataclass(frozen=True, slots=True)
class Request:
    """What ``create`` is to bring about: ``count`` nodes, ``<prefix><first>`` being the first."""

    directory: str
    prefix: str
    first: int
    count: int
    way: Way
    binderfs: str
    """Where our binderfs is or will be mounted: an absolute path free of links."""
    mode: int = 0o666
    max_nodes: int | None = None
    """The ``max=`` of that mount; None leaves it as it is."""


class Created(NamedTuple):
    """What ``create`` found and did, in numbers of nodes."""

    made: int
    present: int


class Deleted(NamedTuple):
    """What ``delete`` did: nodes removed, and one line for each thing that it left."""

    removed: int
    left: tuple[str, ...]


class Made(NamedTuple):
    """A node that ``create`` made and that is still there."""

    name: str
    kind: Kind
    """ABSENT where its link leads nowhere."""
    path: str
    target: str
    """Where the link at ``path`` leads; empty where it is none."""


class Binderfs(Protocol):
    """What is needed of a binderfs: the module ``binderfs``, or a stand-in for it in tests."""

    def mount(self, directory: str, max_nodes: int | None = None, *, again: bool = False) -> None:
        """As ``binderfs.mount``."""

    def unmount(self, directory: str) -> None:
        """As ``binderfs.unmount``."""

    def mount_at(self, directory: str) -> kernel.Mount | None:
        """As ``binderfs.mount_at``."""

    def nodes_in(self, directory: str) -> list[str]:
        """As ``binderfs.nodes_in``."""

    def add_node(self, directory: str, name: str) -> int:
        """As ``binderfs.add_node``."""

    def remove_node(self, directory: str, name: str) -> bool:
        """As ``binderfs.remove_node``."""


def choose_way(filesystems: str, *, root: bool) -> Way:
    """Choose the best way that a host offers, given the text of its /proc/filesystems."""
    if not root:
        return Way.FILE
    known = {line.rpartition("\t")[2] for line in filesystems.splitlines()}
    return Way.BINDERFS if kernel.FILESYSTEM in known else Way.MKNOD


def way_here() -> Way:
    """Choose the best way that this host offers to this process."""
    with open("/proc/filesystems", encoding="ascii") as file:
        return choose_way(file.read(), root=os.geteuid() == 0)


def plan(states: Mapping[int, State], owned: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the numbers that are still to be made or finished, and those whose names others have taken.

    ``owned`` are the numbers in the ledger: what looks right but is not in there is somebody else's.
    """
    make, taken = [], []
    for number, state in states.items():
        if state is State.ABSENT or (state is State.UNFINISHED and number in owned):
            make.append(number)
        elif state is not State.READY or number not in owned:
            taken.append(number)
    return make, taken


def create(request: Request, binderfs: Binderfs = kernel, progress: Progress | None = None) -> Created:
    """Make the nodes that are missing. Interrupted at any point, a second call goes on where it stopped.

    Raises NodeExistsError before anything is made if a name is taken, and HostError or one of its kinds
    for all else that stands in the way; what was made until then stays and is in the ledger.
    """
    with _locked(request.directory):
        ledger = Ledger.load(request.directory)
        origin = Origin(request.way, request.prefix, request.binderfs if request.way is Way.BINDERFS else "")
        maker = _maker(origin, request.directory, request.mode, binderfs)
        numbers = range(request.first, request.first + request.count)
        states = {number: maker.look(f"{request.prefix}{number}") for number in numbers}
        owned = ledger.made.setdefault(origin, set())
        todo, taken = plan(states, owned)
        if taken:
            raise _taken(maker.place(f"{request.prefix}{taken[0]}"), len(taken), request.way)
        unmade = {number for number in todo if states[number] is State.ABSENT}
        owned |= unmade
        ledger.save()
        try:
            if request.way is Way.BINDERFS:
                _mount(request, ledger, binderfs)
                maker = _maker(origin, request.directory, request.mode, binderfs)
            _make(maker, request.prefix, {number: states[number] for number in todo}, unmade, progress)
        finally:
            owned -= unmade
            ledger.save()
    return Created(len(todo), request.count - len(todo))


def _make(
    maker: _Plain | _Linked,
    prefix: str,
    todo: Mapping[int, State],
    unmade: set[int],
    progress: Progress | None,
) -> None:
    """Make what is ``todo``, and take each number out of ``unmade`` as it is made."""
    for done, (number, state) in enumerate(todo.items(), 1):
        # First, so that an interruption may leave a name too many in the ledger, never one too few.
        unmade.discard(number)
        try:
            maker.make(f"{prefix}{number}", state)
        except HostError as error:
            if isinstance(error, NodeExistsError) or maker.look(f"{prefix}{number}") is State.ABSENT:
                unmade.add(number)
            raise
        if progress is not None:
            progress(done, len(todo))


def delete(directory: str, binderfs: Binderfs = kernel, progress: Progress | None = None) -> Deleted:
    """Remove what ``create`` made in ``directory``, and the binderfs if it was mounted for that.

    What is no longer as it was made is left, and forgotten. Raises HostError or one of its kinds; calling it
    again goes on.
    """
    removed, left = 0, []
    with _locked(directory):
        ledger = Ledger.load(directory)
        numbered = [(origin, number) for origin, numbers in ledger.made.items() for number in sorted(numbers)]
        makers = {origin: _maker(origin, directory, 0, binderfs) for origin in ledger.made}
        try:
            for done, (origin, number) in enumerate(numbered, 1):
                name, maker = f"{origin.prefix}{number}", makers[origin]
                state = maker.look(name)
                maker.remove(name, state)
                ledger.made[origin].discard(number)
                if state is State.FOREIGN:
                    left.append(f"{directory}/{name} is not what was made there any more")
                elif state is not State.ABSENT:
                    removed += 1
                if progress is not None:
                    progress(done, len(numbered))
            left += [text for mounted in list(ledger.mounts) if (text := _unmount(mounted, ledger, binderfs))]
        finally:
            ledger.save()
    return Deleted(removed, tuple(left))


def made_in(directory: str, binderfs: Binderfs = kernel) -> list[Made]:
    """List what ``create`` made in ``directory`` and is still there, in natural order."""
    found: list[Made] = []
    for origin, numbers in Ledger.load(directory).made.items():
        maker = _maker(origin, directory, 0, binderfs)
        found += [
            _describe(origin, name, f"{directory}/{name}")
            for name in (f"{origin.prefix}{number}" for number in numbers)
            if maker.look(name) in {State.READY, State.UNFINISHED}
        ]
    return sorted(found, key=lambda one: natural_key(one.name))


def _describe(origin: Origin, name: str, path: str) -> Made:
    kinds = {Way.BINDERFS: Kind.BINDERFS, Way.MKNOD: Kind.STAND_IN, Way.FILE: Kind.FILE}
    target = f"{origin.binderfs}/{name}" if origin.binderfs else ""
    return Made(name, kinds[origin.way] if os.path.exists(path) else Kind.ABSENT, path, target)


def _taken(path: str, count: int, way: Way) -> NodeExistsError:
    more = f" (and {count - 1} more)" if count > 1 else ""
    return NodeExistsError(
        f"{path}{more} is taken by something that was not made here by way of {way}: "
        f"remove it, or choose another prefix or start"
    )


@contextlib.contextmanager
def _telling(what: str, advice: str = "run as root, or choose a directory of your own") -> Iterator[None]:
    """Turn an OSError into the error that tells a person what could not be done; ``advice`` is for want of a right."""
    try:
        yield
    except FileExistsError as error:
        raise NodeExistsError(f"can't {what}: the name was taken meanwhile: try again") from error
    except PermissionError as error:
        raise NotPermittedError(f"can't {what}: {error.strerror}: {advice}") from error
    except OSError as error:
        raise HostError(f"can't {what}: {error.strerror}") from error


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keep others that create or delete out of ``directory``. The lock is on the directory: no file stays."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        text = f"can't use {directory} for nodes: {error.strerror}: choose a directory that is there"
        raise DeviceDirectoryError(text) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"another create or delete is at work in {directory}: wait until it is done"
            raise HostError(text) from error
        yield
    finally:
        os.close(descriptor)


class _Plain:
    """Stand-ins and plain files: all that there is of a node stands in the device directory."""

    def __init__(self, way: Way, directory: str, mode: int) -> None:
        self._way = way
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
        if self._way is Way.MKNOD:
            ours = stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _NULL
        else:
            ours = stat.S_ISREG(seen.st_mode) and seen.st_size == 0
        if not ours:
            return State.FOREIGN
        return State.READY if stat.S_IMODE(seen.st_mode) == self._mode else State.UNFINISHED

    def make(self, name: str, state: State) -> None:
        """Bring about READY, given the state that was seen. Raises HostError or one of its kinds."""
        path, kind, number, advice = self.place(name), stat.S_IFREG, 0, "choose a directory of your own"
        if self._way is Way.MKNOD:
            kind, number, advice = stat.S_IFCHR, _NULL, "devices need root and CAP_MKNOD, plain files do not"
        with _telling(f"make {path}", advice):
            if state is State.ABSENT:
                os.mknod(path, kind | self._mode, number)
            # The umask has its say in mknod, not here.
            os.chmod(path, self._mode)

    def remove(self, name: str, state: State) -> None:
        """Remove it unless it is FOREIGN or ABSENT. Raises HostError or one of its kinds."""
        if state in {State.READY, State.UNFINISHED}:
            with _telling(f"remove {self.place(name)}"):
                os.unlink(self.place(name))


class _Linked:
    """Nodes of a binderfs: the node there, and a link to it in the device directory."""

    def __init__(self, mount: str, directory: str, mode: int, binderfs: Binderfs) -> None:
        self._mount = mount
        self._directory = directory
        self._mode = mode
        self._binderfs = binderfs
        self._mounted = binderfs.mount_at(mount) is not None

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
        if linked != node:
            return State.FOREIGN
        return State.READY if mode == self._mode else State.UNFINISHED

    def make(self, name: str, state: State) -> None:
        """Bring about READY, given the state that was seen. Raises HostError or one of its kinds."""
        node, link = f"{self._mount}/{name}", f"{self._directory}/{name}"
        if state is State.ABSENT or not os.path.lexists(node):
            self._binderfs.add_node(self._mount, name)
        try:
            with _telling(f"make {link}"):
                os.chmod(node, self._mode)
                # Last, since those who watch the directory take the node for usable from here on.
                if state is State.ABSENT or not os.path.lexists(link):
                    os.symlink(node, link)
        except NodeExistsError:
            self._binderfs.remove_node(self._mount, name)
            raise

    def remove(self, name: str, state: State) -> None:
        """Remove the link unless it is another's, and the node. Raises HostError or one of its kinds."""
        if state is not State.FOREIGN:
            with _telling(f"remove {self._directory}/{name}"), contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{name}")
        if self._mounted:
            self._binderfs.remove_node(self._mount, name)


def _maker(origin: Origin, directory: str, mode: int, binderfs: Binderfs) -> _Plain | _Linked:
    if origin.way is Way.BINDERFS:
        return _Linked(origin.binderfs, directory, mode, binderfs)
    return _Plain(origin.way, directory, mode)


def _mount(request: Request, ledger: Ledger, binderfs: Binderfs) -> None:
    """See to it that our binderfs is mounted with the ``max=`` that is asked for."""
    directory = request.binderfs
    there = binderfs.mount_at(directory)
    if there is None:
        _mount_new(request, ledger, binderfs)
    elif request.max_nodes not in {None, there.max_nodes}:
        binderfs.mount(directory, request.max_nodes, again=True)
    ours = ledger.mounts.get(directory)
    if ours is not None and ours.first_nodes is None:
        ledger.mounts[directory] = ours._replace(first_nodes=tuple(sorted(binderfs.nodes_in(directory))))
        ledger.save()


def _mount_new(request: Request, ledger: Ledger, binderfs: Binderfs) -> None:
    directory, before = request.binderfs, ledger.mounts.get(request.binderfs)
    new = not os.path.lexists(directory)
    with _telling(f"look into {directory}"):
        if not new and os.listdir(directory):
            raise BinderfsError(f"{directory} is neither empty nor a binderfs: choose another directory for it")
    ledger.mounts[directory] = Mounted(made_directory=new or bool(before and before.made_directory))
    ledger.save()
    try:
        if new:
            with _telling(f"make the directory {directory}"):
                os.mkdir(directory)
        binderfs.mount(directory, request.max_nodes)
    except HostError:
        _forget_mount(directory, ledger)
        raise


def _unmount(directory: str, ledger: Ledger, binderfs: Binderfs) -> str | None:
    """Unmount the binderfs that was mounted for our nodes; say why not if it holds those of others."""
    ours = ledger.mounts[directory]
    if binderfs.mount_at(directory) is not None:
        # Unknown first nodes: it was interrupted before any node of ours was made, or anybody's of note.
        others = set() if ours.first_nodes is None else {*binderfs.nodes_in(directory)} - {*ours.first_nodes}
        if others:
            return f"{directory} stays mounted, with nodes that were not made here ({min(others)})"
        binderfs.unmount(directory)
    _forget_mount(directory, ledger)
    return None


def _forget_mount(directory: str, ledger: Ledger) -> None:
    if ledger.mounts.pop(directory).made_directory:
        # What somebody has put into it meanwhile stays.
        with contextlib.suppress(OSError):
            os.rmdir(directory)


class Origin(NamedTuple):
    """What a set of numbers in the ledger has in common."""

    way: Way
    prefix: str
    binderfs: str
    """The directory of the binderfs that the links lead to; empty for the other ways."""


class Mounted(NamedTuple):
    """A binderfs that was mounted for our nodes."""

    made_directory: bool
    first_nodes: tuple[str, ...] | None = None
    """The nodes that the kernel put into it (the driver's ``devices=``); None until that is known."""


@dataclass(slots=True)
class Ledger:
    """The record of what was made in one device directory, or was about to be."""

    directory: str
    made: dict[Origin, set[int]] = field(default_factory=dict)
    mounts: dict[str, Mounted] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: str) -> Ledger:
        """Read the ledger of ``directory``; empty if it has none. Raises HostError."""
        path = f"{directory}/{LEDGER}"
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
                owner, text = os.fstat(file.fileno()).st_uid, file.read()
        except FileNotFoundError:
            return cls(directory)
        except OSError as error:
            raise DeviceDirectoryError(f"can't read {path}: {error.strerror}") from error
        if owner not in {0, os.geteuid()}:
            # It says what to unmount and remove: nobody tells another user that, least of all root.
            raise HostError(f"{path} belongs to the user with ID {owner}: run this as that user")
        try:
            return cls(directory, *_decode(json.loads(text)))
        except (ValueError, KeyError, TypeError) as error:
            raise HostError(f"{path} is damaged ({error!r}): remove the nodes by hand, then it") from error

    def save(self) -> None:
        """Write it; a crash leaves the old or the new one. An empty one is removed. Raises HostError."""
        path = f"{self.directory}/{LEDGER}"
        text = _encode(self.made, self.mounts)
        with _telling(f"write {path}"), contextlib.suppress(FileNotFoundError):
            if text is None:
                os.unlink(path)
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{path}.new")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(f"{path}.new", flags, 0o644), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)


def _encode(made: Mapping[Origin, Collection[int]], mounts: Mapping[str, Mounted]) -> str | None:
    origins = [{**origin._asdict(), "ranges": ranges(numbers)} for origin, numbers in made.items() if numbers]
    mounted = [{"directory": directory, **mount._asdict()} for directory, mount in mounts.items()]
    return json.dumps({"made": origins, "mounts": mounted}) if origins or mounted else None


def _decode(data: Any) -> tuple[dict[Origin, set[int]], dict[str, Mounted]]:
    """Undo ``_encode``. Raises ValueError, KeyError or TypeError for what it did not write."""
    made = {}
    for one in data["made"]:
        origin = Origin(Way(one["way"]), one["prefix"], one["binderfs"])
        if name_problem(f"{origin.prefix}0") is not None:
            raise ValueError(f"prefix {origin.prefix!r}")
        made[origin] = {number for first, count in one["ranges"] for number in range(first, first + count)}
    mounts = {
        one["directory"]: Mounted(
            one["made_directory"], None if one["first_nodes"] is None else tuple(one["first_nodes"])
        )
        for one in data["mounts"]
    }
    return made, mounts


def ranges(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Return ``numbers`` as ascending (first, count) pairs, as few as can be."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found
