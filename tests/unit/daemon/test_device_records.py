"""The records of what device IDs mean on a host."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.daemon.device_records import DIRECTORY, DeviceRecords, OtherRecord

PHONE, OTHER = "aosp.io/phone", "example.com/handset"
PHONE_0 = {"phone0": ["/run/phones/phone0"]}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[DeviceRecords]]:
    """Yield the records of three processes, each of which begins later than the one before."""
    clock = itertools.count(1)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                contextlib.closing(DeviceRecords(str(tmp_path), f"/cdi{number}", PHONE, lambda: next(clock)))
            )
            for number in range(3)
        ]


def test_record_outlives_the_process_that_served_the_resource(processes: list[DeviceRecords], tmp_path: Path) -> None:
    """Until it is removed. A process does not meet its own records."""
    first, second, _ = processes
    first.write(PHONE, PHONE_0, None, by_plugin=True)
    assert first.others() == []
    ((record, is_served),) = second.others()
    assert (record.resource, record.devices, is_served) == (PHONE, PHONE_0, True)
    first.close()
    assert second.others() == [OtherRecord(record, is_served=False)]
    assert second.remove(record)
    assert second.others() == []
    assert [*(tmp_path / DIRECTORY).glob("*.json")] == []


def test_records_are_unknown_while_the_directory_of_the_kubelet_is_missing(tmp_path: Path) -> None:
    """Not none: it may be back in a moment, with the records."""
    records = DeviceRecords(str(tmp_path / "missing"), "/cdi", PHONE)
    with pytest.raises(FileNotFoundError):
        records.others()
    (tmp_path / "missing").mkdir()
    assert records.others() == []


def test_paths_of_an_earlier_configuration_stay_until_the_device_is_free(processes: list[DeviceRecords]) -> None:
    """A set of three binder devices became three devices; the pod still has all three."""
    first, second, _ = processes
    former = {"b0": ["/dev/b0", "/dev/b1"], "b2": ["/dev/b2", "/dev/b3"]}
    first.write(PHONE, former, None, by_plugin=True)
    first.close()
    devices = {"b0": ["/dev/b0"], "b1": ["/dev/b1"]}
    for used, kept in ((None, former), ({"b0"}, {"b0": former["b0"]}), (set[str](), {})):
        second.write(PHONE, devices, used, by_plugin=True)
        assert second.own[PHONE].devices == {**devices, **kept}


def test_process_of_a_rolling_update_continues_the_turn_of_the_one_before(processes: list[DeviceRecords]) -> None:
    """Another resource that began meanwhile is later than both; after a restart without overlap it is earlier."""
    first, second, third = processes
    first.write(PHONE, {}, None, by_plugin=True)
    third.write(OTHER, {}, None, by_plugin=True)
    second.write(PHONE, {}, None, by_plugin=True)
    assert second.own[PHONE].since < third.own[OTHER].since
    first.close()
    second.close()
    first.write(PHONE, {}, None, by_plugin=True)
    assert first.own[PHONE].since > third.own[OTHER].since


def test_record_of_a_resource_that_is_served_by_now_is_not_removed(processes: list[DeviceRecords]) -> None:
    """Another process began to serve it, before or after the record was read."""
    first, second, third = processes
    first.write(PHONE, PHONE_0, None, by_plugin=True)
    first.close()
    before = second.others()
    third.write(PHONE, PHONE_0, None, by_plugin=True)
    after = second.others()
    assert [other.is_served for other in (*before, *after)] == [False, True]
    assert not any(second.remove(other.record) for other in (*before, *after))
    assert second.others() == after


def test_removed_directory_is_written_again(processes: list[DeviceRecords], tmp_path: Path) -> None:
    first, second, third = processes
    third.write(PHONE, {}, None, by_plugin=True)
    first.write(PHONE, PHONE_0, None, by_plugin=True)
    third.close()
    before = first.own[PHONE]
    shutil.rmtree(tmp_path / DIRECTORY)
    first.write(PHONE, PHONE_0, set(), by_plugin=True)
    assert second.others() == [OtherRecord(before, is_served=True)]
    assert before.cdi_dirs == ["/cdi0", "/cdi2"]


RECORD = b'{"resource": "%s", "since": 1, "devices": {}, "cdi_dirs": [], "main": ""}'


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"resource": 1}', b"\xff", b'{"x":' + 100_000 * b"[", RECORD % b"a\\u0000", RECORD % b"a/b"],
    ids=["empty", "cut", "list", "type", "encoding", "depth", "no file", "other resource"],
)
def test_damaged_record_is_none(processes: list[DeviceRecords], tmp_path: Path, content: bytes) -> None:
    first, second, _ = processes
    first.write(PHONE, PHONE_0, None, by_plugin=True)
    first.close()
    (path,) = (tmp_path / DIRECTORY).glob("*.json")
    path.write_bytes(content)
    assert second.others() == []
    second.write(PHONE, {"phone1": ["/run/phones/phone1"]}, None, by_plugin=True)
    assert second.own[PHONE].devices == {"phone1": ["/run/phones/phone1"]}


def test_record_that_does_not_change_is_not_written_again(processes: list[DeviceRecords], tmp_path: Path) -> None:
    process = processes[0]
    process.write(PHONE, PHONE_0, None, by_plugin=True)
    (path,) = (tmp_path / DIRECTORY).glob("*.json")
    before = path.stat().st_ino
    process.write(PHONE, PHONE_0, set(), by_plugin=True)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("used", [None, set()])
def test_record_that_others_have_changed_is_written_again(
    processes: list[DeviceRecords], tmp_path: Path, used: set[str] | None
) -> None:
    process = processes[0]
    for content in (None, b"", b"{"):
        for _ in range(3):
            process.write(PHONE, PHONE_0, used, by_plugin=True)
        (path,) = (tmp_path / DIRECTORY).glob("*.json")
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        process.write(PHONE, PHONE_0, used, by_plugin=True)
        assert path.read_bytes() == before


def test_record_names_all_directories_that_specs_of_the_resource_may_be_in(processes: list[DeviceRecords]) -> None:
    first, second, third = processes
    first.write(PHONE, {}, None, by_plugin=True)
    second.write(PHONE, {}, None, by_plugin=True)
    first.write(PHONE, {}, None, by_plugin=True)
    first.close()
    second.close()
    ((record, _),) = third.others()
    assert (record.cdi_dirs, record.main) == (["/cdi0", "/cdi1"], PHONE)


def test_an_error_while_a_process_begins_to_serve_is_retried(processes: list[DeviceRecords], tmp_path: Path) -> None:
    """Its lock is there already: descriptors have run out between the lock and the record."""
    first, second, _ = processes
    second.write(PHONE, PHONE_0, None, by_plugin=True)
    second.close()
    (record,) = (tmp_path / DIRECTORY).glob("*.json")
    record.unlink()
    record.mkdir()
    with pytest.raises(IsADirectoryError):
        first.write(PHONE, PHONE_0, None, by_plugin=True)
    record.rmdir()
    first.write(PHONE, PHONE_0, None, by_plugin=True)
    assert first.own[PHONE].devices == PHONE_0
