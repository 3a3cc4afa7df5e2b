"""CDI specs of claims, which are their records: what is in them, and what is read from them."""

import fcntl
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.devices import ContainerEdits, DeviceNode
from aosp_plugin.framework.dra.claim_host import ClaimSpecs, uid_problem
from aosp_plugin.framework.dra.claim_records import ClaimRecord, DeviceRecord, PreparedDevice, RequestRecord
from aosp_plugin.framework.dra.driver_names import driver_name_problem
from aosp_plugin.framework.errors import CdiError
from tests.claims import make_node, prepare

DRIVER = "phone.aosp.io"
UID = "1a9af5f0-0c39-4ebb-9d29-6fa7b8f44b4d"
EDITS = ContainerEdits([DeviceNode("/run/phones/1/binder", "/dev/binder")])


def record(*ids: str, content: Any = None) -> ClaimRecord:
    devices = tuple(DeviceRecord(each, "node/00000", each) for each in ids)
    parameters = () if content is None else (ClaimParameters("claim", content),)
    return ClaimRecord(UID, "default", "claim", (RequestRecord("phone/fast", devices, parameters),))


def specs(directory: Path, boot: str = "boot") -> ClaimSpecs:
    """Return the specs as a new process has them."""
    boot_id = directory / "boot_id"
    boot_id.write_text(f"{boot}\n")
    state = str(directory / "plugins" / DRIVER)
    return ClaimSpecs(DRIVER, state_directory=state, cdi_directory=str(directory / "cdi"), boot_id_file=str(boot_id))


def write(claims: ClaimSpecs, written: ClaimRecord, *edits: ContainerEdits) -> tuple[PreparedDevice, ...]:
    """Write a spec; ``edits`` are those of the devices, ``EDITS`` by default."""
    with claims.locked():
        return claims.write(written, dict(zip(written.ids, edits or [EDITS] * 9, strict=False)))


def read(claims: ClaimSpecs) -> dict[str, ClaimRecord]:
    """Return the records that are read now."""
    with claims.locked():
        return dict(claims.records)


def content(directory: Path, uid: str = UID) -> Any:
    """Return the content of a spec."""
    return json.loads((directory / "cdi" / f"{DRIVER}-claim_{uid}.json").read_text())


# -- what is written


def test_a_device_without_edits_has_no_cdi_device(tmp_path: Path) -> None:
    prepared = write(specs(tmp_path), record("a", "b"), EDITS, ContainerEdits())
    assert [device.cdi_devices for device in prepared] == [(f"{DRIVER}/claim={UID}-a",), ()]
    assert [device.requests for device in prepared] == [("phone",), ("phone",)]
    assert [device["name"] for device in content(tmp_path)["devices"]] == [f"{UID}-a"]


def test_a_claim_without_edits_has_a_spec_with_a_device_that_no_container_gets(tmp_path: Path) -> None:
    claims = specs(tmp_path)
    (device,) = write(claims, record("a"), ContainerEdits(cdi_devices=["example.com/gpu=0"]))
    assert device.cdi_devices == ("example.com/gpu=0",)
    (unused,) = content(tmp_path)["devices"]
    assert unused["containerEdits"]
    assert set(read(specs(tmp_path))) == {UID}


def test_a_successor_reads_the_record_whatever_the_parameters_are(tmp_path: Path) -> None:
    """A runtime reads the file as YAML, in which some characters are not allowed."""
    text = 'é漢\U0001f600\x7f\x80\x85\u2028\ufeff"\\\x00'
    written = record("a", content={text: [text, 1.5, None, True]})
    write(specs(tmp_path), written)
    assert read(specs(tmp_path)) == {UID: written}
    assert yaml.safe_load(json.dumps(content(tmp_path))) == content(tmp_path)


# -- what is read


def test_a_spec_of_another_boot_is_no_record(tmp_path: Path) -> None:
    write(specs(tmp_path), record("a"))
    later = specs(tmp_path, "later")
    assert read(later) == {}
    assert later.unusable() == [UID]


def test_a_copy_under_the_name_of_another_claim_is_no_record(tmp_path: Path) -> None:
    claims = specs(tmp_path)
    write(claims, record("a"))
    shutil.copy(claims.path(UID), claims.path("other"))
    assert set(read(claims)) == {UID}
    assert claims.unusable() == ["other"]


def test_a_damaged_spec_is_no_record(tmp_path: Path) -> None:
    claims = specs(tmp_path)
    (tmp_path / "cdi").mkdir()
    for damaged in (b"", b"[]", b"\xff", b"{" * 100_000, b'{"annotations": {"phone.aosp.io/claim": "{}"}}'):
        (tmp_path / "cdi" / f"{DRIVER}-claim_{UID}.json").write_bytes(damaged)
        assert read(claims) == {}
        assert claims.unusable() == [UID]


@pytest.mark.parametrize("damage", ["deleted", "changed", "replaced by a directory"])
def test_the_record_of_a_lost_spec_stays_until_another_process_has_held_the_lock(tmp_path: Path, damage: str) -> None:
    """That process may have removed it."""
    claims = specs(tmp_path)
    write(claims, record("a"))
    path = tmp_path / "cdi" / f"{DRIVER}-claim_{UID}.json"
    if damage == "changed":
        path.write_text("{}")
    else:
        path.unlink()
    if damage == "replaced by a directory":
        path.mkdir()
    for _ in range(2):
        assert set(read(claims)) == {UID}
        assert claims.is_lost(UID)
    read(specs(tmp_path))
    assert read(claims) == {}


def test_a_spec_that_another_process_has_replaced_is_read_again(tmp_path: Path) -> None:
    first, second = specs(tmp_path), specs(tmp_path)
    write(first, record("a"))
    write(second, record("b"))
    assert read(first)[UID].ids == ("b",)
    assert not first.is_lost(UID)


def test_only_own_specs_are_read_and_swept(tmp_path: Path) -> None:
    claims = specs(tmp_path)
    assert read(claims) == {}
    claims.sweep()
    write(claims, record("a"))
    names = ["phone.aosp.io-claim_a_b.json", "xphone.aosp.io-claim_a.json", "phone.aosp.io-claim_a.json.tmp", ".x.tmp"]
    for name in names:
        (tmp_path / "cdi" / name).touch()
    left = tmp_path / "cdi" / f".phone.aosp.io-claim_{UID}.json.abcdefgh.tmp"
    left.touch()
    claims.sweep()
    assert set(read(claims)) == {UID}
    assert not claims.unusable()
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == sorted(
        [*names, f"phone.aosp.io-claim_{UID}.json"]
    )


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    claims = specs(tmp_path)
    with pytest.raises(CdiError, match=r"cannot update the CDI spec /.*/cdi: Not a directory"):
        read(claims)
    for access in (lambda: claims.write(record("a"), {"a": EDITS}), lambda: claims.remove(UID)):
        with pytest.raises(CdiError, match=f"cannot update the CDI spec /.*-claim_{UID}.json: Not a directory"):
            access()


# -- the lock


def test_the_lock_excludes_other_processes(tmp_path: Path) -> None:
    order = []
    first, second = specs(tmp_path), specs(tmp_path)

    def wait() -> None:
        with second.locked():
            order.append("second")

    with first.locked():
        thread = threading.Thread(target=wait)
        thread.start()
        with (tmp_path / "plugins" / DRIVER / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert (tmp_path / "plugins" / DRIVER).stat().st_mode & 0o777 == 0o750


# -- names


def test_a_uid_that_is_no_part_of_a_name_is_refused() -> None:
    assert all(map(uid_problem, ("", "-a", "a-", "a/b", "..", "a.b", "a" * 65, "é")))
    assert not uid_problem(UID)


def test_a_driver_name_that_cdi_rejects_is_known() -> None:
    assert driver_name_problem("aosp.io/phone") is None
    assert "must have at least two characters, start with a letter" in (driver_name_problem("aosp.io/7phones") or "")


# -- the host


def test_a_spec_that_is_copied_back_releases_no_device_of_another_claim(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    host, copied = node.host(), node.spec("a")
    prepare(node, host, "a", "phone1", "phone2")
    kept = copied.read_bytes()
    host.unprepare("a")
    prepare(node, host, "b", "phone2")
    copied.write_bytes(kept)
    host.repair()
    assert set(host.specs.records) == {"a", "b"}
    host.unprepare("a")
    assert node.specs == {"b"}
    assert node.backend.mounted == {"phone2"}
