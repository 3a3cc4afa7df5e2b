"""What a binder node is: its name, kind and identity, and the natural order of names.

Values only: looking at the host is ``scanner``'s work, judging a node ``health``'s.
"""

from __future__ import annotations

import enum
import re
from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LONGEST_NAME = 63
"""Characters in a device ID (comment at ``Device.ID`` in the kubelet's api.proto)."""

CONTROL_NAME = "binder-control"
"""The file of a binderfs that makes further nodes: never a node, never handed out."""

_DIGITS = re.compile(r"([0-9]+)")


class Kind(enum.StrEnum):
    """How a node came to be, which decides how it reaches a container (see ``edits``)."""

    BINDERFS = "binderfs"
    """An inode of a binderfs, or a symbolic link to one: opens through this inode only, a copy gives ENXIO."""
    CDEV = "cdev"
    """A misc or out-of-tree node of the binder driver: any copy of the device number opens."""
    STAND_IN = "stand-in"
    """A character device that is not binder's: for tests, made with mknod."""
    FILE = "file"
    """A plain file: for the demo and for tests without root."""
    OTHER = "other"
    """A block device, socket or pipe in the place of a node: never handed out."""
    ABSENT = "absent"
    """Nothing is there: the node is gone, or its link leads nowhere."""


class Identity(NamedTuple):
    """What tells this node from another one that takes its name later."""

    device: int
    """st_dev: the file system."""
    number: int
    """st_rdev: driver and minor; 0 where the node is no device."""
    inode: int
    """st_ino."""
    since: int = 0
    """When the node's binderfs was mounted, in nanoseconds; 0 where that can't be told, and for other kinds.

    st_dev alone does not tell one mount from the next: the kernel gives its number to the next mount that comes
    (fs/super.c ``get_anon_bdev`` takes the lowest one that is free).
    """

    @property
    def file_system(self) -> FileSystem:
        """Which file system the node is on, other mounts before and after it told apart."""
        return self.device, self.since


FileSystem = tuple[int, int]
"""st_dev, and when it was mounted."""


class BinderDevice(NamedTuple):
    """One node as one look at the host found it. Paths are the host's, as the kubelet knows them."""

    name: str
    path: str
    """Where the name stands: <device directory>/<name>."""
    kind: Kind
    identity: Identity | None = None
    """None where the kind is ABSENT."""
    directory: str = ""
    """The directory of the binderfs that the node is in; empty for other kinds, and where the file alone is bound."""


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that puts aosp_binder9 before aosp_binder10; equal only for equal names.

    The parts are text and number in turn, so that text never meets a number when two keys are compared; the name
    itself is apart from them, and decides between aosp_binder1 and aosp_binder01.
    """
    parts: list[str | int] = list(_DIGITS.split(name))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return tuple(parts), name


def natural_sort(names: Sequence[str]) -> list[str]:
    """Sort by ``natural_key``; in a third of the time where names differ in the number at their end alone."""
    texts = {name.rstrip("0123456789") for name in names}
    zero = texts.pop() + "0" if len(texts) == 1 else ""
    if zero and {name for name in names if name.startswith(zero)} <= {zero}:
        return sorted(sorted(names), key=len)
    return sorted(names, key=natural_key)


MERGE_FACTOR = 50
"""Names that are sorted in the time that it takes to put one in its place."""


def should_merge(some: Collection[str], names: Collection[str]) -> bool:
    """Say whether ``some`` are so few that it is quicker to put each in its place than to sort all ``names`` anew."""
    return len(some) * MERGE_FACTOR < len(names)


def merge_sorted(names: Sequence[str], new: Collection[str]) -> Sequence[str]:
    """Return ``names``, which are in natural order, with ``new`` ones among them in natural order."""
    if not should_merge(new, names):
        return natural_sort([*names, *new])
    merged = list(names)
    for name in new:
        insort(merged, name, key=natural_key)
    return merged


def name_problem(name: str) -> str | None:
    """Say why a file name can't serve as a device ID and in a container path; None if it can.

    ``str.isprintable`` is false for control characters, for every space but the common one, and for the
    surrogates that stand for bytes that are not UTF-8 (which a protobuf string can't carry).
    """
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters, and a device ID at most {LONGEST_NAME}"
    if not name.isprintable() or " " in name:
        return "it has a space, a control character or bytes that are not UTF-8"
    if "/" in name or name in {".", ".."}:
        return "it is a path, not a name"
    if "," in name:
        return "it has a comma, which separates the names that a container is given"
    return None
