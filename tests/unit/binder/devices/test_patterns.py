"""Patterns of paths."""

from aosp_plugin.binder.devices.patterns import is_pattern, matches, may_overlap, parts


def test_wildcard_makes_a_pattern() -> None:
    assert all(map(is_pattern, ("*", "/dev/dri/renderD*", "/dev/a?", "/dev/[ab]", "/dev/[[]")))
    assert not is_pattern("/dev/dri/card0]{1}~!")


def test_part_matches_as_in_a_shell() -> None:
    """Hidden files match only a pattern that begins with a dot."""
    for part, name, matched in (
        ("renderD*", "renderD", True),
        ("renderD*", "xrenderD1", False),
        ("card?", "card10", False),
        ("card[!0]", "card1", True),
        ("card[!0]", "card0", False),
        ("[[]x", "[x", True),
        ("A*", "a1", False),
        ("*", ".hidden", False),
        (".h*", ".hidden", True),
    ):
        assert matches(part, name) == matched


def test_overlap_of_patterns_and_paths() -> None:
    for first, second, overlap in (
        ("/dev/a", "/dev/ab", False),
        ("/dev/a", "/dev/a/b", True),
        ("/", "/dev/a", True),
        ("/dev/dri/*", "/dev/dri/card0", True),
        ("/dev/dri/card*", "/dev/dri/renderD128", False),
        ("/dev/dri/*", "/dev/dri/renderD*", True),
        ("/dev/dri/card*", "/dev/dri/render*", False),
        ("/dev/*/x", "/dev/pts", True),
        ("/*", "/proc/self", True),
    ):
        assert may_overlap(first, second) == may_overlap(second, first) == overlap


def test_parts_are_between_slashes() -> None:
    assert parts("//dev//dri/*/") == ["dev", "dri", "*"]
    assert parts("/") == []
