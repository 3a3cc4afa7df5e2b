"""Names of binder devices: natural order, and the rules for a name that is also a device ID."""

from __future__ import annotations

import re
from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TypeAlias

    NaturalKey: TypeAlias = tuple[tuple[str | int, ...], str]
    """Sorts in natural order; see ``natural_key``."""

LONGEST_NAME = 63
"""Maximum number of characters of a device ID (comment on ``Device.ID`` in the kubelet's api.proto)."""

MERGE_FACTOR = 50
"""One insertion into a sorted list takes about as long as sorting this many names."""

_SUSPICIOUS, _RESERVED = frozenset(" /,"), frozenset({"", ".", ".."})
"""Characters that no name contains, and names that are not valid; see ``name_problem``."""

_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*\Z)")

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> NaturalKey:
    """Return a sort key that orders aosp_binder9 before aosp_binder10. Only equal names have equal keys.

    Text and numbers alternate in the first part, so a comparison of two keys never compares text with a number. The
    second part, the name, orders aosp_binder01 and aosp_binder1.
    """
    parts: list[str | int] = list(_DIGITS.split(name))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return tuple(parts), name


def last_number(name: str) -> int | None:
    """Return the last number in a name; None if it has none."""
    match = _LAST_NUMBER.search(name)
    return int(match[0]) if match else None


def natural_sort(names: Sequence[str]) -> list[str]:
    """Sort by ``natural_key``; three times as fast if the names differ in their last number only."""
    prefixes = {name.rstrip("0123456789") for name in names}
    zero = prefixes.pop() + "0" if len(prefixes) == 1 else ""
    if zero and {name for name in names if name.startswith(zero)} <= {zero}:
        return sorted(sorted(names), key=len)
    return sorted(names, key=natural_key)


def should_merge(new: Collection[str], names: Collection[str]) -> bool:
    """Return whether inserting each of ``new`` into the sorted ``names`` is faster than sorting all of them."""
    return len(new) * MERGE_FACTOR < len(names)


def merge_sorted(names: Sequence[str], new: Collection[str]) -> Sequence[str]:
    """Return ``names``, which are in natural order, and ``new`` as one list in natural order."""
    if not should_merge(new, names):
        return natural_sort([*names, *new])
    merged = list(names)
    for name in new:
        insort(merged, name, key=natural_key)
    return merged


def name_problems(names: Collection[str]) -> dict[str, str]:
    """Return ``name_problem`` of those of the names that have one; fast if there is none."""
    joined = "".join(names)
    suspicious = (
        not joined.isprintable() or not _SUSPICIOUS.isdisjoint(joined) or max(map(len, names), default=0) > LONGEST_NAME
    )
    if not suspicious and not _RESERVED.intersection(names):
        return {}
    return {name: problem for name in names if (problem := name_problem(name)) is not None}


def name_problem(name: str) -> str | None:
    """Return why a file name is not usable as a device ID and in a container path, or None if it is.

    ``str.isprintable`` is false for control characters, for every white space except the ASCII space, and for the
    surrogates that represent bytes that are not UTF-8, which a protobuf string cannot carry.
    """
    if not name:
        return "the name is empty"
    if len(name) > LONGEST_NAME:
        return f"the name has {len(name)} characters; a device ID has at most {LONGEST_NAME}"
    if not name.isprintable() or " " in name:
        return "the name contains a space, a control character or bytes that are not UTF-8"
    if "/" in name or name in {".", ".."}:
        return "it is a path, not a name"
    if "," in name:
        return "the name contains a comma, which separates the names in a container's environment variable"
    return None
