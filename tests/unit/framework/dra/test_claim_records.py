"""Records of prepared claims: what is read from their files, damaged ones included, and their lock."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.dra.claim_records import (
    ClaimRecord,
    ClaimReference,
    DeviceRecord,
    RecordStore,
    RequestRecord,
)
from aosp_plugin.framework.errors import ClaimRecordError

DRIVER = "phone.aosp.io"
UID = "1a9af5f0-0c39-4ebb-9d29-6fa7b8f44b4d"
NAME = f"claim_default_claim.1_{UID}.json"


def record(*ids: str, content: Any = None, name: str = "claim.1", driver: str = DRIVER) -> ClaimRecord:
    devices = tuple(DeviceRecord(each, "node/00000", each) for each in ids)
    parameters = () if content is None else (ClaimParameters("claim", content),)
    return ClaimRecord(driver, UID, "default", name, (RequestRecord("phone/fast", devices, parameters),))


def store(directory: Path, boot: str = "boot", driver: str = DRIVER) -> RecordStore:
    """Return the records as a new process has them."""
    boot_id = directory / "boot_id"
    boot_id.write_text(f"{boot}\n")
    return RecordStore(driver, str(directory / "plugins" / driver), boot_id_file=str(boot_id))


def write(records: RecordStore, written: ClaimRecord) -> Path:
    """Write a record, and return the path of its file, as a process that ends then."""
    records.refresh()
    records.write(written, ["/phones/1"], "/cdi")
    records.close()
    return next(Path(records.directory).glob("claim_*.json"))


def read(records: RecordStore) -> dict[str, ClaimRecord]:
    """Return the records that are read now, by a process that ends then."""
    records.refresh()
    records.close()
    return dict(records.records)


def test_a_successor_reads_the_record_whatever_the_parameters_are(tmp_path: Path) -> None:
    text = 'é漢\U0001f600\x7f\x80\x85\u2028\ufeff"\\\x00'
    written = record("a", content={text: [text, 1.5, None, True]})
    path = write(store(tmp_path), written)
    assert (path.name, path.stat().st_mode & 0o777) == (NAME, 0o600)
    assert read(store(tmp_path)) == {UID: written}


def test_a_record_of_another_boot_counts_for_nothing_and_is_swept(tmp_path: Path) -> None:
    path = write(store(tmp_path), record("a"))
    later = store(tmp_path, "later")
    assert read(later) == {}
    assert not later.damaged
    assert [content.claim.uid for content in later.sweep()] == [UID]
    assert not path.exists()


def test_a_record_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(os, "rename", lambda source, _: synced.append(-os.stat(source).st_size))
    records = store(tmp_path)
    records.refresh()
    records.write(record("a"), (), "/cdi")
    records.close()
    size, renamed = synced
    assert (size > 0, renamed) == (True, -size)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{" * 100_000, b'{"boot": "boot"}', None])
def test_a_damaged_record_keeps_the_name_of_its_claim(tmp_path: Path, content: bytes | None) -> None:
    """Until it is removed, by the plugin or by a person. A FIFO is not opened, which would hang."""
    path = write(store(tmp_path), record("a"))
    for by_person in (False, True):
        path.unlink(missing_ok=True)
        os.mkfifo(path) if content is None else path.write_bytes(content)
        records = store(tmp_path)
        assert read(records) == {}
        assert records.damaged == {NAME: ClaimReference("default", "claim.1", UID)}
        assert not records.sweep()
        assert records.damaged
        if by_person:
            path.unlink()
        else:
            records.remove(UID)
        assert read(records) == {}
        assert not records.damaged


def test_a_copy_for_another_claim_or_driver_is_a_damaged_record(tmp_path: Path) -> None:
    records = store(tmp_path)
    path = write(records, record("a"))
    shutil.copy(path, path.with_name("claim_default_other_uid.json"))
    assert set(read(records)) == {UID}
    assert [*records.damaged.values()] == [ClaimReference("default", "other", "uid")]
    other = store(tmp_path, driver="new.aosp.io")
    other.refresh()
    shutil.copy(path, other.directory)
    assert read(other) == {}
    assert [*other.damaged] == [NAME]


def test_a_claim_whose_name_is_too_long_for_a_file_has_a_record(tmp_path: Path) -> None:
    written = record("a", name="n" * 253)
    path = write(store(tmp_path), written)
    assert path.name == f"claim_{UID}.json"
    assert read(store(tmp_path)) == {UID: written}
    path.write_text("")
    records = store(tmp_path)
    read(records)
    assert [*records.damaged.values()] == [ClaimReference("", "", UID)]


@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_a_lost_record_counts_until_it_is_written_again(tmp_path: Path, damage: str) -> None:
    records = store(tmp_path)
    path = write(records, record("a"))
    path.unlink()
    if damage == "changed":
        path.write_text("{}")
    for _ in range(2):
        assert read(records) == {UID: record("a")}
    assert records.write_lost(record("a"))
    assert not records.write_lost(record("a"))
    assert read(store(tmp_path)) == {UID: record("a")}


def test_only_own_files_are_read_and_swept(tmp_path: Path) -> None:
    records = store(tmp_path)
    path = write(records, record("a"))
    foreign = ["checkpoint.json", "claim_a_b_c_d.json", "claim_a_b_c.json.tmp", ".x.tmp"]
    for name in (*foreign, f".{NAME}.abcdefgh.tmp"):
        path.with_name(name).touch()
    records.sweep()
    assert {each.name for each in path.parent.iterdir()} == {*foreign, NAME, "lock"}
    assert not records.damaged


def test_the_claims_of_other_drivers_are_known_by_their_places(tmp_path: Path) -> None:
    write(store(tmp_path, driver="old.aosp.io"), record("a", driver="old.aosp.io"))
    (tmp_path / "plugins" / "csi.example.com").mkdir()
    records = store(tmp_path)
    write(records, record("b"))
    ((content,), damaged) = records.others()
    assert (content.places, content.claim.driver, damaged) == (("/phones/1",), "old.aosp.io", [])
    damaged_path = tmp_path / "plugins" / "old.aosp.io" / NAME
    damaged_path.write_text("")
    assert records.others() == ([], [str(damaged_path)])
    assert store(tmp_path, "later").others().prepared == []


def test_errors_name_the_file(tmp_path: Path) -> None:
    records = store(tmp_path)
    read(records)
    shutil.rmtree(records.directory)
    with pytest.raises(ClaimRecordError, match=f"cannot write /.*/{NAME}: No such file or directory"):
        records.write(record("a"), (), "/cdi")
    (tmp_path / "plugins" / DRIVER).touch()
    with pytest.raises(ClaimRecordError, match=r"cannot lock /.*/plugins/phone.aosp.io/lock: Not a directory"):
        read(records)


def test_one_process_has_the_records_until_it_ends(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    first.refresh()
    assert (tmp_path / "plugins" / DRIVER).stat().st_mode & 0o777 == 0o750
    for _ in range(2):
        with pytest.raises(ClaimRecordError, match=r"another process serves phone.aosp.io: it has locked /.*/lock"):
            second.refresh()
    assert (first.is_served_elsewhere, second.is_served_elsewhere) == (False, True)
    first.write(record("a"), (), "/cdi")
    first.close()
    assert read(second) == {UID: record("a")}
    assert not second.is_served_elsewhere


def test_a_lock_that_is_lost_with_its_directory_is_taken_again(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    first.refresh()
    shutil.rmtree(first.directory)
    first.refresh()
    with pytest.raises(ClaimRecordError, match="another process serves"):
        second.refresh()
    first.close()
