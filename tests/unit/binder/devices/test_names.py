"""Names of binder devices: natural order, and which names are usable as device IDs."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.sets import LONGEST_NAME, name_problem, natural_key, natural_sort

NAMES = st.text(alphabet="ab0129_", max_size=8)


def test_natural_order_compares_numbers_by_value() -> None:
    """Only ASCII digits form numbers."""
    lists = ["a2 a2x a2x2 a2x11 a10x1 b9", "9a 10a a", "b001 b01 b1", "b4 b²"]
    for names in map(str.split, lists):
        backwards = names[::-1]
        backwards.sort(key=natural_key)
        assert backwards == names


@given(st.lists(NAMES))
@settings(derandomize=True, deadline=None)
def test_keys_are_equal_only_for_equal_names(names: list[str]) -> None:
    """Any two names can be compared, and the order does not depend on the order of the input."""
    assert len({natural_key(name) for name in names}) == len(set(names))
    assert natural_sort(names) == sorted(sorted(names), key=natural_key)


def test_name_problem_describes_unusable_names() -> None:
    for name in ("aosp_binder0", "x" * LONGEST_NAME, "..a", "ключ", "a:b=c%d"):
        assert name_problem(name) is None
    for name, problem in (
        ("", "the name is empty"),
        ("x" * (LONGEST_NAME + 1), "the name has 64 characters; a device ID has at most 63"),
        ("a b", "a space"),
        *((f"a{text}b", "a control character") for text in ("\x7f", "\n", "\x1b[2J", "\u202e")),
        (os.fsdecode(b"a\xff"), "bytes that are not UTF-8"),
        ("a/b", "it is a path, not a name"),
        ("..", "it is a path, not a name"),
        ("a,b", "a comma"),
    ):
        assert problem in (name_problem(name) or "")
