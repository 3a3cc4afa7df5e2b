"""Names of binder devices: natural order, and the rules for a name that is also a device ID."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    NaturalKey: TypeAlias = tuple[tuple[str | int, ...], str]
    """Sorts in natural order; see ``natural_key``."""

LONGEST_NAME = 63
"""Maximum number of characters of a device ID (comment on ``Device.ID`` in the kubelet's api.proto)."""

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
