"""The record of what was made in one device directory, or was about to be: a hidden file in that directory.

Whoever may make nodes there may write it, root or not, and it goes when they go (/dev is new at every boot).
It is read, judged fit to be believed, written and locked here; nothing here makes, mounts or removes what it
records.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.errors import DeviceDirectoryError, HostError
from aosp_plugin.binder.provision.makers import ProvisionMethod, telling

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

LEDGER = ".aosp-binder-nodes.json"
"""Name of the file in the device directory."""


class Origin(NamedTuple):
    """What a set of numbers in the ledger has in common."""

    way: ProvisionMethod
    prefix: str
    binderfs: str
    """The directory of the binderfs that the links lead to; empty for the other ways."""


class Mounted(NamedTuple):
    """A binderfs that was mounted for our nodes, and how to know it again."""

    device: int
    """Its st_dev, which the kernel gives to the next mount as soon as this one is gone."""
    since: int
    """st_mtime_ns of its control file, which is the time of the mount and stays: nothing writes to it."""
    first_nodes: tuple[str, ...]
    """The nodes that the kernel put into it (the driver's ``devices=``)."""

    @classmethod
    def at(cls, directory: str, first_nodes: tuple[str, ...]) -> Mounted:
        """Describe the binderfs that is mounted at ``directory`` now."""
        control = os.stat(f"{directory}/{CONTROL_NAME}")
        return cls(control.st_dev, control.st_mtime_ns, first_nodes)

    def is_at(self, directory: str) -> bool:
        """Say whether the binderfs that is mounted at ``directory`` now is this one."""
        return self == self.at(directory, self.first_nodes)


@dataclass(slots=True)
class Ledger:
    """What is recorded for one device directory."""

    directory: str
    made: dict[Origin, set[int]] = field(default_factory=dict)
    """The numbers of the nodes."""
    mounts: dict[str, Mounted | None] = field(default_factory=dict)
    """By directory, those that were mounted for the nodes; None for one that is about to be."""

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
        with telling(f"write {path}"), contextlib.suppress(FileNotFoundError):
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


@contextlib.contextmanager
def locked(directory: str) -> Iterator[Ledger]:
    """Read the ledger of ``directory``, and keep others that create or delete out meanwhile. Raises HostError.

    The lock is on the directory: no file stays.
    """
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
        yield Ledger.load(directory)
    finally:
        os.close(descriptor)


def _encode(made: Mapping[Origin, Collection[int]], mounts: Mapping[str, Mounted | None]) -> str | None:
    origins = [{**origin._asdict(), "ranges": ranges(numbers)} for origin, numbers in made.items() if numbers]
    mounted = [{"directory": directory, "mounted": ours and ours._asdict()} for directory, ours in mounts.items()]
    return json.dumps({"made": origins, "mounts": mounted}) if origins or mounted else None


def _decode(data: Any) -> tuple[dict[Origin, set[int]], dict[str, Mounted | None]]:
    """Undo ``_encode``. Raises ValueError, KeyError or TypeError for what it did not write."""
    made: dict[Origin, set[int]] = {}
    for one in data["made"]:
        origin = Origin(ProvisionMethod(one["way"]), one["prefix"], one["binderfs"])
        if name_problem(f"{origin.prefix}0") is not None:
            raise ValueError(f"prefix {origin.prefix!r}")
        made[origin] = {number for first, count in one["ranges"] for number in range(first, first + count)}
    mounts: dict[str, Mounted | None] = {}
    for one in data["mounts"]:
        ours = one["mounted"]
        mounts[one["directory"]] = None if ours is None else Mounted(**{**ours, "first_nodes": (*ours["first_nodes"],)})
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
