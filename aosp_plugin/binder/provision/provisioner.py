"""Keeping so many nodes there: a daemon's work, where ``provision`` alone is a command's.

A look costs two system calls a node, and changes nothing where nothing is missing. What is missing is made by
``provision.create``, so that the ledger knows of it: ``aosp-plugin nodes list`` and ``delete`` work on these nodes, and
an init container that ran ``nodes create`` has done the same before. Nothing is ever removed or unmounted here.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aosp_plugin.binder.driver import binderfs as kernel
from aosp_plugin.binder.errors import BinderfsError, DeviceExistsError, HostError
from aosp_plugin.binder.provision.bulk import Request, create
from aosp_plugin.binder.provision.ledger import ranges
from aosp_plugin.binder.provision.makers import LinkMaker, ProvisionMethod, State, telling

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.binder.provision.makers import Binderfs

RETRY_AFTER = 60.0
"""Seconds without another attempt after one that failed: what it wrote into the ledger is an event in the device
directory, which calls for a look, which would be the next attempt."""

_ONE_AT_A_TIME = threading.Lock()
"""Several resources may have nodes in one binderfs, and are looked at in threads of their own: none of them should
take the other for a command at work, or mount where the other is about to."""


@dataclass(frozen=True, slots=True)
class ProvisionSpec:
    """The nodes that are to be there: ``count`` of them, ``<prefix><first>`` being the first. Paths are the host's."""

    directory: str
    """The device directory, which gets a link to each node, unless it is the binderfs itself."""
    prefix: str
    first: int
    count: int
    binderfs: str
    """Where our binderfs is or will be mounted. Outside /dev, since every privileged container gets a device for each
    node below that."""
    max_devices: int | None = None
    """Its ``max=`` at the least: all nodes, one more for ``renew``, and one for each old node that is still held; None
    for what the kernel gives."""
    mode: int = 0o666
    """Android's processes are of many users: system (1000), and one for each app."""


class DeviceProvisioner:
    """Ensures again and again, with a pause after a failure."""

    def __init__(
        self,
        wanted: ProvisionSpec,
        host: Host,
        binderfs: Binderfs = kernel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._host = host
        self._binderfs = binderfs
        self._clock = clock
        self._not_before = self._clock()

    def look(self) -> int:
        """Do what ``ensure`` does, or nothing for ``RETRY_AFTER`` seconds after an error that it raised.

        A name that is taken is no cause to wait: it is found before anything is written.
        """
        if self._clock() < self._not_before:
            return 0
        try:
            return ensure(self._wanted, self._host, self._binderfs)
        except DeviceExistsError:
            raise
        except HostError:
            self._not_before = self._clock() + RETRY_AFTER
            raise


def ensure(wanted: ProvisionSpec, host: Host, binderfs: Binderfs = kernel) -> int:
    """Make the nodes that are missing, whatever became of them; return how many were made or put right.

    A node or link that was removed, and a mode that was changed, comes back as it was. A binderfs that was unmounted is
    mounted again and filled: nodes of another file system, which ``health`` calls replaced for as long as containers
    may hold the old ones (``missing_device_ttl``). One that somebody else mounted over ours is an error, and stays: its
    nodes are missing or replaced. A ``max=`` below ``max_devices`` is raised, never lowered. Nodes that are all there
    and as they should be are taken as they are, whoever made them.

    Under a root other than / the mount has to reach the host (mountPropagation: Bidirectional).

    Raises DeviceExistsError where a name is taken by something that was not made here, once all the others are made;
    HostError or one of its kinds for all else that stands in the way.
    """
    with _ONE_AT_A_TIME, telling(f"keep nodes in {wanted.directory}", "run as root"):
        request = _request(wanted, host)
        there = binderfs.mount_at(request.root + request.binderfs)
        fit = there is not None and _suffices(there.max_devices, wanted.max_devices)
        if fit:
            request = replace(request, max_devices=None)
        if request.directory == request.binderfs:
            return _ensure_unlinked(request, binderfs, fit=fit)
        return _ensure_linked(request, binderfs, fit=fit)


def _suffices(max_devices: int | None, wanted: int | None) -> bool:
    return max_devices is None or wanted is None or max_devices >= wanted


def _request(wanted: ProvisionSpec, host: Host) -> Request:
    """Return what is wanted, with paths free of links."""
    return Request(
        directory=host.resolve(wanted.directory),
        prefix=wanted.prefix,
        first=wanted.first,
        count=wanted.count,
        way=ProvisionMethod.BINDERFS,
        binderfs=host.resolve(wanted.binderfs),
        mode=wanted.mode,
        max_devices=wanted.max_devices,
        root=host.process_path("/").rstrip("/"),
    )


def _ensure_linked(request: Request, binderfs: Binderfs, *, fit: bool) -> int:
    if not fit:
        create(replace(request, count=0), binderfs)
    maker = LinkMaker(request.directory, request.mode, request.binderfs, binderfs, mounted=True, root=request.root)
    states = {number: maker.look(f"{request.prefix}{number}") for number in _numbers(request)}
    missing = ranges([number for number, state in states.items() if state is not State.READY])
    refused: list[DeviceExistsError] = []
    made = sum(_create(replace(request, first=first, count=count), binderfs, refused) for first, count in missing)
    if refused:
        more = f" (one of {len(refused)} such names)" if len(refused) > 1 else ""
        raise DeviceExistsError(f"{refused[0]}{more}")
    return made


def _create(request: Request, binderfs: Binderfs, refused: list[DeviceExistsError]) -> int:
    """Make all nodes but those whose names are taken, each of which puts an error into ``refused``.

    Half by half, since ``create`` makes nothing at all where a name is taken.
    """
    try:
        return create(request, binderfs).made
    except DeviceExistsError as error:
        if request.count == 1:
            refused.append(error)
            return 0
    half = request.count // 2
    rest = replace(request, first=request.first + half, count=request.count - half)
    return _create(replace(request, count=half), binderfs, refused) + _create(rest, binderfs, refused)


def _ensure_unlinked(request: Request, binderfs: Binderfs, *, fit: bool) -> int:
    """Make the nodes right in the device directory, which takes no ledger: nothing but nodes can be made in there."""
    directory = request.root + request.binderfs
    if not fit:
        _mount(directory, request.max_devices, binderfs)
    return sum(
        _put_right(directory, f"{request.prefix}{number}", request.mode, binderfs) for number in _numbers(request)
    )


def _mount(directory: str, max_devices: int | None, binderfs: Binderfs) -> None:
    again = binderfs.mount_at(directory) is not None
    if not again:
        if not os.path.lexists(directory):
            os.makedirs(directory)
        if os.listdir(directory):
            raise BinderfsError(f"{directory} is neither empty nor a binderfs: choose another directory for it")
    binderfs.mount(directory, max_devices, again=again)


def _put_right(directory: str, name: str, mode: int, binderfs: Binderfs) -> bool:
    """See to it that there is such a node, and say whether there was something to do."""
    path = f"{directory}/{name}"
    try:
        if stat.S_IMODE(os.lstat(path).st_mode) == mode:
            return False
    except FileNotFoundError:
        binderfs.add_device(directory, name)
    os.chmod(path, mode)
    return True


def _numbers(request: Request) -> range:
    return range(request.first, request.first + request.count)
