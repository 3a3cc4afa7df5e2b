"""CDI specs of claims: what is in them, and when one is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.backend import ContainerEdits, DeviceNode
from aosp_plugin.framework.dra import claim_records
from aosp_plugin.framework.dra.claim_host import ClaimSpecs
from aosp_plugin.framework.dra.claim_records import ClaimRecord, DeviceRecord, RequestRecord
from aosp_plugin.framework.dra.slices import driver_name_problem
from aosp_plugin.framework.errors import CdiError

DRIVER = "phone.aosp.io"
UID = "1a9af5f0-0c39-4ebb-9d29-6fa7b8f44b4d"
EDITS = ContainerEdits([DeviceNode("/run/phones/1/binder", "/dev/binder")])


def specs(directory: Path) -> ClaimSpecs:
    """Return the specs as a new process has them."""
    return ClaimSpecs(DRIVER, str(directory / "cdi"))


def write(claims: ClaimSpecs, *edits: ContainerEdits) -> tuple[pb.Device, ...]:
    """Write the spec of a claim whose devices have these edits."""
    ids = [f"phone{number}" for number in range(len(edits))]
    devices = tuple(DeviceRecord(each, "node/00000", each) for each in ids)
    record = ClaimRecord(DRIVER, UID, "default", "claim", (RequestRecord("phone/fast", devices),))
    return claims.write(record, dict(zip(ids, edits, strict=True)))


def path_in(directory: Path) -> Path:
    return directory / "cdi" / f"{DRIVER}-claim_{UID}.json"


def devices_of(directory: Path) -> Any:
    """Return the devices in the spec."""
    return json.loads(path_in(directory).read_text())["devices"]


def test_a_device_without_edits_has_no_cdi_device(tmp_path: Path) -> None:
    prepared = write(specs(tmp_path), EDITS, ContainerEdits())
    assert [[*device.cdi_device_ids] for device in prepared] == [[f"{DRIVER}/claim={UID}-phone0"], []]
    assert [[*device.request_names] for device in prepared] == [["phone"], ["phone"]]
    assert [device["name"] for device in devices_of(tmp_path)] == [f"{UID}-phone0"]
    assert path_in(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_claim_without_edits_has_no_spec_and_lacks_none(tmp_path: Path) -> None:
    """No runtime accepts a spec without edits."""
    claims = specs(tmp_path)
    (device,) = write(claims, ContainerEdits(cdi_devices=["example.com/gpu=0"]))
    assert [*device.cdi_device_ids] == ["example.com/gpu=0"]
    assert not path_in(tmp_path).exists()
    assert claims.is_intact(UID)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "a.com/b", "devices": []}', "\xff", "{" * 100_000])
def test_a_spec_is_intact_until_somebody_changes_it(tmp_path: Path, content: str) -> None:
    claims = specs(tmp_path)
    assert not claims.is_intact(UID)
    write(claims, EDITS)
    assert claims.is_intact(UID)
    path_in(tmp_path).write_text(content, encoding="latin-1")
    assert not claims.is_intact(UID)


def test_only_own_temporary_files_are_swept(tmp_path: Path) -> None:
    claims = specs(tmp_path)
    claims.sweep()
    write(claims, EDITS)
    foreign = ["phone.aosp.io-claim_a.json.tmp", ".x.tmp"]
    left = f".phone.aosp.io-claim_{UID}.json.abcdefgh.tmp"
    for name in (*foreign, left):
        (tmp_path / "cdi" / name).touch()
    claims.sweep()
    assert {path.name for path in (tmp_path / "cdi").iterdir()} == {*foreign, path_in(tmp_path).name}


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    claims = specs(tmp_path)
    for access in (lambda: write(claims, EDITS), lambda: claims.remove(UID), lambda: claims.is_intact(UID)):
        with pytest.raises(CdiError, match=f"cannot update the CDI spec /.*-claim_{UID}.json: Not a directory"):
            access()
    with pytest.raises(CdiError, match=r"cannot update the CDI spec /.*/cdi: Not a directory"):
        claims.sweep()


def test_names_that_cdi_rejects_are_known() -> None:
    assert not any(map(claim_records.UID.fullmatch, ("", "-a", "a-", "a/b", "..", "a.b", "a" * 65, "é")))
    assert claim_records.UID.fullmatch(UID)
    assert driver_name_problem("aosp.io/phone") is None
    assert "must have at least two characters, start with a letter" in (driver_name_problem("aosp.io/7phones") or "")
