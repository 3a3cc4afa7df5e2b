"""Nodes made for tests: which are missing, and how to make those, list them, and remove them and no others.

What is about to be made is recorded first, in the ``ledger``. So a run that was killed can be resumed or
undone, and ``delete`` needs no guess at what is ours: a name is ours if it is in the ledger *and* still what
was made (a link into our binderfs, a null device, an empty file). How one node is made is the ``makers``' matter.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.binder.driver import binderfs as kernel
from aosp_plugin.binder.errors import BinderfsError, DeviceExistsError, HostError
from aosp_plugin.binder.provision.ledger import Ledger, Mounted, Origin, locked
from aosp_plugin.binder.provision.makers import FileMaker, LinkMaker, ProvisionMethod, StandInMaker, State, telling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aosp_plugin.binder.provision.makers import Binderfs, Maker

    Progress = Callable[[int, int], None]
    """Called after each node with the number done and the number to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What ``create`` is to bring about: ``count`` nodes, ``<prefix><first>`` being the first."""

    directory: str
    prefix: str
    first: int
    count: int
    way: ProvisionMethod
    binderfs: str
    """Where our binderfs is or will be mounted: an absolute path free of links."""
    mode: int = 0o666
    max_devices: int | None = None
    """The ``max=`` of that mount; None leaves it as it is."""
    root: str = ""
    """Where this process sees the host's files: ``directory`` and ``binderfs`` are the host's own paths."""


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

    Raises DeviceExistsError before anything is made if a name is taken, and HostError or one of its kinds
    for all else that stands in the way; what was made until then stays and is in the ledger.
    """
    origin = Origin(request.way, request.prefix, request.binderfs if request.way is ProvisionMethod.BINDERFS else "")
    with locked(request.root + request.directory) as ledger:
        if _replaced(origin.binderfs, ledger, binderfs, request.root):
            raise BinderfsError(
                f"{origin.binderfs} is not the binderfs that was mounted there for nodes in {request.directory}: "
                f"unmount it, or delete those nodes first, which leaves it alone"
            )
        maker = _maker(origin, request.directory, request.mode, ledger, binderfs, request.root)
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
            if request.way is ProvisionMethod.BINDERFS:
                _mount(request, ledger, binderfs)
                maker = _maker(origin, request.directory, request.mode, ledger, binderfs, request.root)
            _make(maker, request.prefix, {number: states[number] for number in todo}, unmade, progress)
        finally:
            owned -= unmade
            ledger.save()
    return Created(len(todo), request.count - len(todo))


def _make(maker: Maker, prefix: str, todo: Mapping[int, State], unmade: set[int], progress: Progress | None) -> None:
    """Make what is ``todo``, and take each number out of ``unmade`` as it is made."""
    for done, (number, state) in enumerate(todo.items(), 1):
        # First, so that an interruption may leave a name too many in the ledger, never one too few.
        unmade.discard(number)
        try:
            maker.make(f"{prefix}{number}", state)
        except HostError as error:
            if isinstance(error, DeviceExistsError) or maker.look(f"{prefix}{number}") is State.ABSENT:
                unmade.add(number)
            raise
        if progress is not None:
            progress(done, len(todo))


def delete(directory: str, binderfs: Binderfs = kernel, progress: Progress | None = None) -> Deleted:
    """Remove what ``create`` made in ``directory``, and unmount the binderfs if it was mounted for that.

    What is no longer as it was made is left, and forgotten. Raises HostError or one of its kinds; calling it
    again goes on.
    """
    removed, left = 0, []
    with locked(directory) as ledger:
        numbered = [(origin, number) for origin, numbers in ledger.made.items() for number in sorted(numbers)]
        makers = {origin: _maker(origin, directory, 0, ledger, binderfs) for origin in ledger.made}
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
    ledger = Ledger.load(directory)
    for origin, numbers in ledger.made.items():
        maker = _maker(origin, directory, 0, ledger, binderfs)
        found += [
            _describe(origin, name, f"{directory}/{name}")
            for name in (f"{origin.prefix}{number}" for number in numbers)
            if maker.look(name) in {State.READY, State.UNFINISHED}
        ]
    return sorted(found, key=lambda one: natural_key(one.name))


def _describe(origin: Origin, name: str, path: str) -> Made:
    kinds = {
        ProvisionMethod.BINDERFS: Kind.BINDERFS,
        ProvisionMethod.MKNOD: Kind.STAND_IN,
        ProvisionMethod.FILE: Kind.FILE,
    }
    target = f"{origin.binderfs}/{name}" if origin.binderfs else ""
    return Made(name, kinds[origin.way] if os.path.exists(path) else Kind.ABSENT, path, target)


def _taken(path: str, count: int, way: ProvisionMethod) -> DeviceExistsError:
    more = f" (and {count - 1} more)" if count > 1 else ""
    return DeviceExistsError(
        f"{path}{more} is taken by something that was not made here by way of {way}: "
        f"remove it, or choose another prefix or start"
    )


def _maker(origin: Origin, directory: str, mode: int, ledger: Ledger, binderfs: Binderfs, root: str = "") -> Maker:
    if origin.way is ProvisionMethod.FILE:
        return FileMaker(root + directory, mode)
    if origin.way is ProvisionMethod.MKNOD:
        return StandInMaker(root + directory, mode)
    mount = origin.binderfs
    mounted = binderfs.mount_at(root + mount) is not None and not _replaced(mount, ledger, binderfs, root)
    return LinkMaker(directory, mode, mount, binderfs, mounted=mounted, root=root)


def _mount(request: Request, ledger: Ledger, binderfs: Binderfs) -> None:
    """See to it that our binderfs is mounted with the ``max=`` that is asked for, and recorded."""
    directory, seen = request.binderfs, request.root + request.binderfs
    there = binderfs.mount_at(seen)
    if there is None:
        _mount_new(request, ledger, binderfs)
    elif request.max_devices not in {None, there.max_devices}:
        binderfs.mount(seen, request.max_devices, again=True)
    if directory in ledger.mounts and ledger.mounts[directory] is None:
        ledger.mounts[directory] = Mounted.at(seen, tuple(sorted(binderfs.devices_in(seen))))
        ledger.save()


def _mount_new(request: Request, ledger: Ledger, binderfs: Binderfs) -> None:
    directory = request.root + request.binderfs
    new = not os.path.lexists(directory)
    with telling(f"look into {directory}"):
        if not new and os.listdir(directory):
            raise BinderfsError(f"{directory} is neither empty nor a binderfs: choose another directory for it")
    ledger.mounts[request.binderfs] = None
    ledger.save()
    try:
        if new:
            with telling(f"make the directory {directory}"):
                os.mkdir(directory)
        binderfs.mount(directory, request.max_devices)
    except HostError:
        del ledger.mounts[request.binderfs]
        if new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        raise


def _unmount(directory: str, ledger: Ledger, binderfs: Binderfs) -> str | None:
    """Unmount the binderfs that was mounted for our nodes; say why not if that is no matter of ours.

    The directory stays, made by us or not: the plugin's container may have it mounted, and would go on looking at
    this one if another took its place.
    """
    ours, text = ledger.mounts[directory], None
    if _replaced(directory, ledger, binderfs):
        text = f"{directory} stays mounted: it is not the binderfs that was mounted there for the nodes"
    elif binderfs.mount_at(directory) is not None:
        # Not recorded: it was interrupted before any node of ours was made, or anybody's of note.
        others = {*binderfs.devices_in(directory)} - {*ours.first_nodes} if ours else None
        if others:
            return f"{directory} stays mounted, with nodes that were not made here ({min(others)})"
        binderfs.unmount(directory)
    del ledger.mounts[directory]
    return text


def _replaced(directory: str, ledger: Ledger, binderfs: Binderfs, root: str = "") -> bool:
    """Say whether a binderfs was mounted for our nodes at ``directory``, and another one is there now."""
    ours, seen = ledger.mounts.get(directory), root + directory
    return ours is not None and binderfs.mount_at(seen) is not None and not ours.is_at(seen)
