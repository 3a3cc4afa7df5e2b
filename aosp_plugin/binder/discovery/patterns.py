"""Patterns of paths, such as /dev/dri/renderD*. Functions of their arguments.

The wildcards ``*``, ``?`` and ``[...]`` stand for characters of one part of a path, as in a shell: they match no slash,
and no dot at the beginning of a part.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

_WILDCARD = re.compile(r"[*?[]")


def is_pattern(path: str) -> bool:
    """Return whether a path, or a part of it, has wildcards."""
    return _WILDCARD.search(path) is not None


def matches(part: str, name: str) -> bool:
    """Return whether a file name matches a part of a pattern."""
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def may_overlap(first: str, second: str) -> bool:
    """Return whether two normalised paths are the same, or one contains the other, for any match of a pattern.

    Two different patterns overlap if one of them matches the text of the other one.
    """
    pairs = zip(parts(first), parts(second), strict=False)
    return all(a == b or fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in pairs)


def parts(path: str) -> list[str]:
    """Return the parts of a path between its slashes."""
    return [part for part in path.split("/") if part]
