"""Patterns of paths."""

from __future__ import annotations

import pytest

from aosp_plugin.binder.devices.patterns import is_pattern, matches, may_overlap, parts


@pytest.mark.parametrize("text", ["*", "/dev/dri/renderD*", "/dev/a?", "/dev/[ab]", "/dev/[[]"])
def test_wildcard_makes_a_pattern(text: str) -> None:
    assert is_pattern(text)
    assert not is_pattern("/dev/dri/card0]{1}~!")


@pytest.mark.parametrize(
    ("part", "name", "matched"),
    [
        ("renderD*", "renderD128", True),
        ("renderD*", "renderD", True),
        ("renderD*", "xrenderD1", False),
        ("card?", "card10", False),
        ("card[!0]", "card1", True),
        ("card[!0]", "card0", False),
        ("[[]x", "[x", True),
        ("A*", "a1", False),
        ("*", ".hidden", False),
        (".h*", ".hidden", True),
    ],
)
def test_part_matches_as_in_a_shell(part: str, name: str, *, matched: bool) -> None:
    """Hidden files match only a pattern that begins with a dot."""
    assert matches(part, name) == matched


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("/dev/a", "/dev/a", True),
        ("/dev/a", "/dev/ab", False),
        ("/dev/a", "/dev/a/b", True),
        ("/", "/dev/a", True),
        ("/dev/dri/*", "/dev/dri/card0", True),
        ("/dev/dri/card*", "/dev/dri/renderD128", False),
        ("/dev/dri/*", "/dev/dri/renderD*", True),
        ("/dev/dri/card*", "/dev/dri/render*", False),
        ("/dev/*", "/dev/null", True),
        ("/dev/*/x", "/dev/pts", True),
        ("/dev/t*", "/dev/shm", False),
        ("/*", "/proc/self", True),
    ],
)
def test_overlap_of_patterns_and_paths(first: str, second: str, *, overlap: bool) -> None:
    assert may_overlap(first, second) == may_overlap(second, first) == overlap


def test_parts_are_between_slashes() -> None:
    assert parts("//dev//dri/*/") == ["dev", "dri", "*"]
    assert parts("/") == []
