"""The comparison of two texts of /proc/self/mountinfo."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.events.mount_table import MountTable

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
A = "30 22 0:30 / /a rw,relatime shared:2 - tmpfs none rw"
B = "31 30 0:31 / /a/b rw,relatime - tmpfs none rw"
BIND = "36 22 8:1 /file /bind rw,relatime - ext4 /dev/sda1 rw"
BIND_IN_A = "37 30 0:4 net:[4026531840] /a/bind rw - nsfs nsfs rw"
SPACE = r"32 22 0:32 / /with\040space\011and\134 rw - tmpfs none rw"
NEXT_LINE = "33 22 0:33 / /next\u2028line\x0c rw - tmpfs none rw"


def text(*lines: str) -> str:
    """Return the text of a table."""
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def table() -> MountTable:
    """Return a table with the root and A."""
    table = MountTable()
    assert table.changes(text(ROOT, A)) is None
    return table


@pytest.mark.parametrize(
    ("lines", "points"),
    [
        ((ROOT, A), set()),
        ((ROOT, A, B), {"/a/b"}),
        ((ROOT,), {"/a"}),
        ((), {"/", "/a"}),
        ((ROOT, A.replace("rw,relatime", "ro,relatime")), {"/a"}),
        ((ROOT, A.replace("rw,relatime shared:2", "rw,relatime")), {"/a"}),
        ((ROOT, A.replace(" /a ", " /moved ")), {"/a", "/moved"}),
        ((ROOT, A, A.replace("30 22 0:30 / /a", "34 30 0:30 /bound /a")), {"/a"}),
        ((ROOT, A, SPACE), {"/with space\tand\\"}),
        ((ROOT, A, NEXT_LINE), {"/next\u2028line\x0c"}),
    ],
)
def test_changes_are_the_mount_points_of_lines_that_differ(
    table: MountTable, lines: tuple[str, ...], points: set[str]
) -> None:
    """Whether they appeared, vanished, were mounted again, moved, bound, or have other options or propagation."""
    assert table.changes(text(*lines)) == frozenset(points)
    assert table.changes(text(*lines)) == frozenset()


def test_line_that_is_missing_or_doubled_once_is_a_change_or_none(table: MountTable) -> None:
    """The table may change while it is read. The next text is right."""
    assert table.changes(text(ROOT)) == frozenset({"/a"})
    assert table.changes(text(ROOT, A, A)) == frozenset({"/a"})
    assert table.changes(text(ROOT, A)) == frozenset()


def test_changes_are_unknown_after_a_failure(table: MountTable) -> None:
    table.changes(text(ROOT, A, BIND))
    with pytest.raises(IndexError):
        table.changes("damaged\n")
    table.forget()
    assert table.binds_in({"/"}) == set()
    assert table.changes(text(ROOT, B)) is None
    assert table.changes(text(ROOT)) == frozenset({"/a/b"})


def test_binds_in_directories_are_those_of_the_last_text(table: MountTable) -> None:
    """Whole file systems do not count."""
    table.changes(text(ROOT, A, B, BIND, BIND_IN_A, BIND_IN_A.replace("37 30", "38 37")))
    assert table.binds_in({"/", "/other"}) == {"/bind"}
    assert table.binds_in({"/a"}) == {"/a/bind"}
    table.changes(text(ROOT, A, BIND, BIND_IN_A))
    assert table.binds_in({"/a"}) == {"/a/bind"}
    table.changes(text(ROOT, A))
    assert table.binds_in({"/", "/a"}) == set()
