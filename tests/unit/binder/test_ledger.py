"""The record of what was made: it holds what was put into it, believes nobody it must not, and is locked."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.provision.ledger import LEDGER, Ledger, Mounted, Origin, locked, ranges
from aosp_plugin.binder.provision.makers import ProvisionMethod
from aosp_plugin.errors import DeviceDirectoryError, HostError, NotPermittedError

if TYPE_CHECKING:
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of a file, which needs root")

FILES = Origin(ProvisionMethod.FILE, "a", "")

origins = st.builds(
    Origin,
    st.sampled_from(ProvisionMethod),
    st.text("ab_0", max_size=9),
    st.sampled_from(["", "/run/aosp-binderfs", "/ö\udcff"]),
)
numbers = st.sets(st.integers(0, 60), min_size=1)
mounts = st.builds(
    Mounted, st.integers(0, 2**32), st.integers(-1, 2**64), st.lists(st.text(), max_size=3).map(lambda names: (*names,))
)


@settings(database=None)
@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_the_same_numbers_in_as_few_pairs_as_can_be(numbers: set[int]) -> None:
    """Expanded, they are the numbers again, ascending; and no two of them touch."""
    pairs = ranges(numbers)
    assert [n for first, count in pairs for n in range(first, first + count)] == sorted(numbers)
    assert all(one[0] + one[1] < other[0] for one, other in pairwise(pairs))


@settings(database=None)
@given(st.dictionaries(origins, numbers, max_size=4), st.dictionaries(st.text(), mounts | st.none(), max_size=3))
def test_what_is_saved_is_loaded(made: dict[Origin, set[int]], mounts: dict[str, Mounted | None]) -> None:
    """Every ledger comes back as it was."""
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(directory, made, mounts)
        ledger.save()
        assert Ledger.load(directory) == ledger


def test_an_empty_one_is_no_file(tmp_path: Path) -> None:
    """Saved without a node and a mount, it goes; where there is none, it is empty."""
    ledger = Ledger(str(tmp_path), {FILES: {1}})
    ledger.save()
    assert os.listdir(tmp_path) == [LEDGER]
    ledger.made[FILES].clear()
    ledger.save()
    ledger.save()
    assert os.listdir(tmp_path) == []
    assert Ledger.load(str(tmp_path)) == Ledger(str(tmp_path))


def test_others_may_read_it_and_not_write_it(tmp_path: Path) -> None:
    """A list needs no rights."""
    before = os.umask(0)
    try:
        Ledger(str(tmp_path), {FILES: {1}}).save()
    finally:
        os.umask(before)
    assert (tmp_path / LEDGER).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"made": [{"way": "magic", "prefix": "a", "binderfs": "", "ranges": []}], "mounts": []}',
        '{"made": [{"way": "file", "prefix": "../a", "binderfs": "", "ranges": []}], "mounts": []}',
        '{"made": [{"way": "file", "prefix": "a", "binderfs": "", "ranges": [1]}], "mounts": []}',
        '{"made": [], "mounts": [{"directory": "/run/x"}]}',
        '{"made": [], "mounts": [{"directory": "/run/x", "mounted": {}}]}',
        '{"made": [], "mounts": [{"directory": "/run/x", "mounted": {"first_nodes": []}}]}',
    ],
)
def test_a_damaged_ledger_is_told(tmp_path: Path, text: str) -> None:
    """Nothing of it is guessed; a prefix that leads out of the directory is damage too."""
    (tmp_path / LEDGER).write_text(text)
    with pytest.raises(HostError, match=f"{tmp_path}/{LEDGER} is damaged .*: remove the nodes by hand, then it"):
        Ledger.load(str(tmp_path))


@needs_root
def test_a_ledger_of_another_user_is_not_obeyed(tmp_path: Path) -> None:
    """It says what to remove and unmount, which nobody but root and the user itself may tell."""
    Ledger(str(tmp_path), {FILES: {1}}).save()
    os.chown(tmp_path / LEDGER, 1234, 1234)
    with pytest.raises(HostError, match="belongs to the user with ID 1234: run this as that user"):
        Ledger.load(str(tmp_path))


@needs_root
def test_a_ledger_of_roots_is_obeyed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could do it all itself."""
    Ledger(str(tmp_path), {FILES: {1}}).save()
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert Ledger.load(str(tmp_path)).made == {FILES: {1}}


def test_a_ledger_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write to the directory could point it anywhere."""
    Ledger(str(tmp_path), {FILES: {1}}).save()
    (tmp_path / LEDGER).rename(tmp_path / "elsewhere")
    (tmp_path / LEDGER).symlink_to("elsewhere")
    with pytest.raises(DeviceDirectoryError, match=f"can't read {tmp_path}/{LEDGER}"):
        Ledger.load(str(tmp_path))


def test_a_half_written_ledger_does_no_harm(tmp_path: Path) -> None:
    """What a crash left of the new one is replaced, and not followed if it is a link."""
    directory, precious = tmp_path / "dev", tmp_path / "precious"
    directory.mkdir()
    precious.write_text("mine")
    (directory / f"{LEDGER}.new").symlink_to(precious)
    Ledger(str(directory), {FILES: {1}}).save()
    assert os.listdir(directory) == [LEDGER]
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EACCES, NotPermittedError, "Permission denied: run as root, or choose a directory of your own"),
        (errno.ENOSPC, HostError, "No space left on device"),
    ],
)
def test_a_failure_to_write_is_told_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[HostError], text: str
) -> None:
    """The error names the file and the cause; what was there before is there still."""
    ledger = Ledger(str(tmp_path), {FILES: {1}})
    ledger.save()

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    ledger.made[FILES].add(2)
    with pytest.raises(kind) as caught:
        ledger.save()
    assert str(caught.value) == f"can't write {tmp_path}/{LEDGER}: {text}"
    assert json.loads((tmp_path / LEDGER).read_text())["made"][0]["ranges"] == [[1, 1]]


def test_the_lock_keeps_others_out_until_it_is_let_go(tmp_path: Path) -> None:
    """It gives the ledger, leaves no file, and lets go after a failure as well."""
    Ledger(str(tmp_path), {FILES: {1}}).save()
    before = len(os.listdir("/proc/self/fd"))
    with locked(str(tmp_path)) as ledger:
        assert ledger == Ledger(str(tmp_path), {FILES: {1}})
        with pytest.raises(HostError, match=f"at work in {tmp_path}: wait until it is done"):
            locked(str(tmp_path)).__enter__()
    (tmp_path / LEDGER).write_text("{")
    for _ in range(2):
        with pytest.raises(HostError, match="damaged"):
            locked(str(tmp_path)).__enter__()
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == [LEDGER]


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_device_directory_that_is_none_is_told(tmp_path: Path, kind: str) -> None:
    """The error names it, and says what to do."""
    path = tmp_path / "dev"
    if kind == "file":
        path.touch()
    text = f"can't use {path} for nodes: .*: choose a directory that is there"
    with pytest.raises(DeviceDirectoryError, match=text):
        locked(str(path)).__enter__()


def test_a_mount_is_known_by_device_and_time(tmp_path: Path) -> None:
    """The kernel gives the device number to the next mount; its control file tells the two apart."""
    control = tmp_path / CONTROL_NAME
    control.touch()
    ours = Mounted.at(str(tmp_path), ("binder",))
    assert ours == Mounted(control.stat().st_dev, control.stat().st_mtime_ns, ("binder",))
    control.chmod(0o600)
    (tmp_path / "a0").touch()
    assert ours.is_at(str(tmp_path))
    assert not ours._replace(device=ours.device + 1).is_at(str(tmp_path))
    os.utime(control, ns=(0, ours.since + 1))
    assert not ours.is_at(str(tmp_path))
