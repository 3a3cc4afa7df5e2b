"""The records of what device IDs mean on a host."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.daemon.device_records import DIRECTORY, DeviceRecords

PHONE, OTHER = "aosp.io/phone", "example.com/handset"


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


def test_record_outlives_the_process_that_served_the_resource(processes: list[DeviceRecords]) -> None:
    first, second, _ = processes
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    ((record, is_served),) = second.others()
    assert (record.resource, record.devices, is_served) == (PHONE, {"phone0": ["/run/phones/phone0"]}, True)
    first.close()
    assert [(other.record, other.is_served) for other in second.others()] == [(record, False)]


def test_records_are_unknown_while_the_directory_of_the_kubelet_is_missing(tmp_path: Path) -> None:
    """Not none: it may be back in a moment, with the records."""
    records = DeviceRecords(str(tmp_path / "missing"), "/cdi", PHONE)
    with pytest.raises(FileNotFoundError):
        records.others()
    (tmp_path / "missing").mkdir()
    assert records.others() == []


def test_process_does_not_meet_its_own_records(processes: list[DeviceRecords]) -> None:
    process = processes[0]
    process.write(PHONE, {}, None)
    process.write(OTHER, {}, None)
    assert process.others() == []


def test_paths_of_an_earlier_configuration_stay_until_the_device_is_free(processes: list[DeviceRecords]) -> None:
    """A set of three binder devices became three devices; the pod still has all three."""
    first, second, _ = processes
    first.write(PHONE, {"b0": ["/dev/b0", "/dev/b1"], "b2": ["/dev/b2", "/dev/b3"]}, None)
    first.close()
    second.write(PHONE, {"b0": ["/dev/b0"], "b1": ["/dev/b1"]}, None)
    assert second.own[PHONE].devices == {"b0": ["/dev/b0", "/dev/b1"], "b1": ["/dev/b1"], "b2": ["/dev/b2", "/dev/b3"]}
    second.write(PHONE, {"b0": ["/dev/b0"], "b1": ["/dev/b1"]}, {"b0"})
    assert second.own[PHONE].devices == {"b0": ["/dev/b0", "/dev/b1"], "b1": ["/dev/b1"]}
    second.write(PHONE, {"b0": ["/dev/b0"], "b1": ["/dev/b1"]}, set())
    assert second.own[PHONE].devices == {"b0": ["/dev/b0"], "b1": ["/dev/b1"]}


def test_process_of_a_rolling_update_continues_the_turn_of_the_one_before(processes: list[DeviceRecords]) -> None:
    """Another resource that began meanwhile is later than both; after a restart without overlap it is earlier."""
    first, second, third = processes
    first.write(PHONE, {}, None)
    third.write(OTHER, {}, None)
    second.write(PHONE, {}, None)
    assert second.own[PHONE].since < third.own[OTHER].since
    first.close()
    second.close()
    first.write(PHONE, {}, None)
    assert first.own[PHONE].since > third.own[OTHER].since


def test_record_is_removed(processes: list[DeviceRecords], tmp_path: Path) -> None:
    first, second, _ = processes
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    first.close()
    ((record, _),) = second.others()
    assert second.remove(record)
    assert second.others() == []
    assert [*(tmp_path / DIRECTORY).glob("*.json")] == []


def test_record_of_a_resource_that_is_served_by_now_is_not_removed(processes: list[DeviceRecords]) -> None:
    """Another process began to serve it after the record was read."""
    first, second, third = processes
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    first.close()
    ((record, is_served),) = second.others()
    assert not is_served
    third.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    assert not second.remove(record)
    assert [other.is_served for other in second.others()] == [True]


def test_removed_directory_is_written_again(processes: list[DeviceRecords], tmp_path: Path) -> None:
    first, second, _ = processes
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    since = first.own[PHONE].since
    shutil.rmtree(tmp_path / DIRECTORY)
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, set())
    ((record, is_served),) = second.others()
    assert (record.devices, record.since, is_served) == ({"phone0": ["/run/phones/phone0"]}, since, True)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"resource": 1}', b'{"resource": "\xff"}', b"\xff"),
        b'{"x":' + 100_000 * b"[",
        *(
            b'{"resource": "%s", "since": 1, "devices": {}, "cdi_dirs": [], "main": ""}' % name
            for name in (b"a\\u0000", b"a/b")
        ),
    ],
    ids=["empty", "cut", "list", "type", "encoding", "no text", "depth", "no file", "other resource"],
)
def test_damaged_record_is_none(processes: list[DeviceRecords], tmp_path: Path, content: bytes) -> None:
    first, second, _ = processes
    first.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    first.close()
    (path,) = (tmp_path / DIRECTORY).glob("*.json")
    path.write_bytes(content)
    assert second.others() == []
    second.write(PHONE, {"phone1": ["/run/phones/phone1"]}, None)
    assert second.own[PHONE].devices == {"phone1": ["/run/phones/phone1"]}


def test_record_that_does_not_change_is_not_written_again(processes: list[DeviceRecords], tmp_path: Path) -> None:
    process = processes[0]
    process.write(PHONE, {"phone0": ["/run/phones/phone0"]}, None)
    (path,) = (tmp_path / DIRECTORY).glob("*.json")
    before = path.stat().st_ino
    process.write(PHONE, {"phone0": ["/run/phones/phone0"]}, set())
    assert path.stat().st_ino == before


def test_record_names_all_directories_that_specs_of_the_resource_may_be_in(processes: list[DeviceRecords]) -> None:
    first, second, third = processes
    first.write(PHONE, {}, None)
    second.write(PHONE, {}, None)
    first.write(PHONE, {}, None)
    first.close()
    second.close()
    ((record, _),) = third.others()
    assert (record.cdi_dirs, record.main) == (["/cdi0", "/cdi1"], PHONE)
