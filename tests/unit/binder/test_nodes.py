"""Names of nodes: their natural order, and which of them can be devices; the file system a node is on."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.discovery.binder_device import Identity
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem, natural_key

NAMES = st.text(alphabet="ab0129_", max_size=8)


def test_numbers_in_names_order_by_value() -> None:
    """aosp_binder9 comes before aosp_binder10, and the number at the front counts before the one behind."""
    names = ["b10", "b9", "a2x11", "a2x2", "a10x1", "a2"]
    assert sorted(names, key=natural_key) == ["a2", "a2x2", "a2x11", "a10x1", "b9", "b10"]


def test_a_name_without_a_number_comes_before_those_that_go_on_with_one() -> None:
    """The node "binder" may stand beside "binder1"."""
    assert sorted(["binder1", "binder", "binder0"], key=natural_key) == ["binder", "binder0", "binder1"]
    assert sorted(["a2x1", "a2x", "a2"], key=natural_key) == ["a2", "a2x", "a2x1"]


def test_names_that_begin_with_a_number_order_with_the_others() -> None:
    """A leading number is compared as a number, and never with a text."""
    assert sorted(["10a", "9a", "a", ""], key=natural_key) == ["", "9a", "10a", "a"]


def test_names_that_differ_in_leading_zeros_have_different_keys() -> None:
    """Two files may be called b1 and b01: the order is still total, and the same for any input order."""
    names = ["b1", "b001", "b01"]
    assert len({natural_key(name) for name in names}) == 3
    assert sorted(names, key=natural_key) == ["b001", "b01", "b1"]


def test_digits_of_other_scripts_are_text() -> None:
    """A superscript two is a digit to str.isdigit but not to int, and an Arabic three is not counted as one."""
    assert sorted(["b²", "b4", "b٣"], key=natural_key) == ["b4", "b²", "b٣"]


@given(st.lists(NAMES))
@settings(derandomize=True, deadline=None)
def test_keys_are_equal_only_for_equal_names(names: list[str]) -> None:
    """Any names can be compared, and no two different ones are taken for one."""
    assert len({natural_key(name) for name in names}) == len(set(names))
    assert sorted(set(names), key=natural_key) == sorted(sorted(set(names)), key=natural_key)


@pytest.mark.parametrize(
    "name", ["aosp_binder0", "a", "x" * LONGEST_NAME, "binder.1", "..a", "binder-control2", "ключ", "a:b=c%d"]
)
def test_a_plain_name_can_be_a_device(name: str) -> None:
    """Whatever fits into a device ID, a path and a list with commas is taken."""
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "the name is empty"),
        ("x" * (LONGEST_NAME + 1), "the name has 64 characters; a device ID has at most 63"),
        ("a b", "the name contains a space"),
        ("a\nb", "a control character"),
        ("a\tb", "a control character"),
        ("a\x7fb", "a control character"),
        ("a\u2028b", "the name contains a space"),
        ("a\u00a0b", "the name contains a space"),
        (os.fsdecode(b"a\xff"), "bytes that are not UTF-8"),
        ("a/b", "it is a path, not a name"),
        (".", "it is a path, not a name"),
        ("..", "it is a path, not a name"),
        ("a,b", "the name contains a comma"),
    ],
)
def test_a_name_that_can_not_be_a_device_is_refused_with_the_reason(name: str, why: str) -> None:
    """Each kind of unusable name has its own reason."""
    assert why in (name_problem(name) or "")


def test_a_file_system_is_its_number_and_when_it_was_mounted() -> None:
    """The inode and the device number may change without it, as a node is made anew."""
    assert Identity(70, 1, 2, 5).file_system == Identity(70, 3, 4, 5).file_system
    assert Identity(70, 1, 2, 5).file_system != Identity(70, 1, 2, 6).file_system
    assert Identity(70, 1, 2, 5).file_system != Identity(71, 1, 2, 5).file_system
