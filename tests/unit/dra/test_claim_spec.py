"""CDI specs of claims: what is in them, and what is read from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aosp_plugin.framework.dra.claim_spec import MAX_ANNOTATION_BYTES, ClaimSpecs, uid_problem
from aosp_plugin.framework.dra.names import driver_name_problem
from aosp_plugin.framework.dra.records import ClaimRecord, DeviceRecord, ParametersRecord, RequestRecord
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode
from aosp_plugin.framework.errors import BackendError, CdiError
from tests.claims import make_node, prepare

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = "phone.aosp.io"
UID = "1a9af5f0-0c39-4ebb-9d29-6fa7b8f44b4d"
EDITS = ContainerEdits([DeviceNode("/run/phones/1/binder", "/dev/binder")])


def record(*ids: str, content: Any = None) -> ClaimRecord:
    devices = tuple(DeviceRecord(each, "node/00000", each) for each in ids)
    parameters = () if content is None else (ParametersRecord("claim", content),)
    return ClaimRecord(UID, "default", "claim", "started", (RequestRecord("phone", devices, parameters),))


def specs(directory: Path, boot: str = "boot") -> ClaimSpecs:
    return ClaimSpecs(str(directory / "cdi"), DRIVER, boot)


def test_a_device_without_edits_has_no_cdi_device(tmp_path: Path) -> None:
    described = specs(tmp_path).describe(record("a", "b"), {"a": EDITS, "b": ContainerEdits()})
    assert [device.cdi_devices for device in described.devices] == [(f"{DRIVER}/claim={UID}-a",), ()]
    assert [device["name"] for device in json.loads(described.spec or b"")["devices"]] == [f"{UID}-a"]


def test_a_claim_without_edits_has_no_spec(tmp_path: Path) -> None:
    claim_specs = specs(tmp_path)
    described = claim_specs.describe(record("a"), {"a": ContainerEdits(cdi_devices=["example.com/gpu=0"])})
    assert described.spec is None
    assert described.devices[0].cdi_devices == ("example.com/gpu=0",)
    claim_specs.write(UID, b"old")
    claim_specs.write(UID, described.spec)
    assert claim_specs.uids() == []


def test_annotations_for_a_container_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="annotations of a container"):
        specs(tmp_path).describe(record("a"), {"a": ContainerEdits(annotations={"x": "y"})})


@pytest.mark.parametrize("text", ["plain", "é漢\U0001f600", "\x7f\x80\x85\u2028\ufeff", '"\\', "\x00"])
def test_a_spec_carries_its_record_whatever_the_parameters_are(tmp_path: Path, text: str) -> None:
    """A runtime reads the file as YAML, in which some characters are not allowed."""
    claim_specs = specs(tmp_path)
    prepared = record("a", content={text: [text, 1.5, None, True]})
    described = claim_specs.describe(prepared, {"a": EDITS})
    claim_specs.write(UID, described.spec)
    assert claim_specs.carried(UID) == prepared.with_state("completed")
    assert yaml.safe_load(described.spec or b"") == json.loads(described.spec or b"")


def test_a_record_that_is_too_long_for_a_runtime_is_not_carried(tmp_path: Path) -> None:
    claim_specs = specs(tmp_path)
    described = claim_specs.describe(record("a", content="x" * MAX_ANNOTATION_BYTES), {"a": EDITS})
    assert "annotations" not in json.loads(described.spec or b"")
    claim_specs.write(UID, described.spec)
    assert claim_specs.carried(UID) is None


def test_a_record_is_not_read_from_a_spec_of_another_boot_or_claim(tmp_path: Path) -> None:
    claim_specs = specs(tmp_path)
    described = claim_specs.describe(record("a"), {"a": EDITS})
    claim_specs.write(UID, described.spec)
    claim_specs.write("other", described.spec)
    assert specs(tmp_path, "later").carried(UID) is None
    assert claim_specs.carried("other") is None
    assert claim_specs.carried("missing") is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"annotations": {"phone.aosp.io/claim": "{}"}}'])
def test_a_damaged_spec_carries_nothing(tmp_path: Path, content: bytes) -> None:
    claim_specs = specs(tmp_path)
    claim_specs.write(UID, content)
    assert claim_specs.carried(UID) is None


def test_only_own_specs_are_listed_and_swept(tmp_path: Path) -> None:
    claim_specs = specs(tmp_path)
    assert claim_specs.uids() == []
    claim_specs.sweep()
    claim_specs.write(UID, b"{}")
    names = ["phone.aosp.io-claim_a_b.json", "xphone.aosp.io-claim_a.json", "phone.aosp.io-claim_a.json.tmp", ".x.tmp"]
    for name in names:
        (tmp_path / "cdi" / name).touch()
    left = tmp_path / "cdi" / f".phone.aosp.io-claim_{UID}.json.abcdefgh.tmp"
    left.touch()
    claim_specs.sweep()
    assert claim_specs.uids() == [UID]
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == sorted(
        [*names, f"phone.aosp.io-claim_{UID}.json"]
    )


def test_errors_name_the_spec(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    claim_specs = specs(tmp_path)
    for access in (
        lambda: claim_specs.write(UID, b"{}"),
        lambda: claim_specs.read(UID),
        lambda: claim_specs.remove(UID),
    ):
        with pytest.raises(CdiError, match=f"cannot update the CDI spec /.*-claim_{UID}.json: Not a directory"):
            access()


@pytest.mark.parametrize("uid", ["", "-a", "a-", "a/b", "..", "a.b", "a" * 65, "é"])
def test_a_uid_that_is_no_part_of_a_name_is_refused(uid: str) -> None:
    assert uid_problem(uid)
    assert not uid_problem(UID)


def test_a_driver_name_that_cdi_rejects_is_known() -> None:
    assert driver_name_problem("aosp.io/phone") is None
    assert "must have at least two characters, start with a letter" in (driver_name_problem("aosp.io/7phones") or "")


def test_an_orphan_releases_the_devices_that_no_other_claim_has(tmp_path: Path) -> None:
    """A spec without a record, such as one that was copied back into its directory."""
    node = make_node(tmp_path)
    host, orphan = node.host(), node.spec("a")
    prepare(node, host, "a", "phone1", "phone2")
    content = orphan.read_bytes()
    host.unprepare("a")
    prepare(node, host, "b", "phone2")
    orphan.write_bytes(content)
    (node.backend.directory / "phone1").mkdir()
    node.backend.fail = {"unprepare"}
    host.repair()
    assert {uid: str(error) for uid, error in host.problems.items()} == {"a": "[Errno 5] unprepare fails"}
    node.backend.fail = set()
    host.repair()
    assert not host.problems
    assert node.specs == {"b"}
    assert node.backend.mounted == {"phone2"}


def test_results_of_a_backend_that_do_not_match_its_devices_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(tmp_path)
    monkeypatch.setattr(node.backend, "prepare", lambda _ids, _parameters: [])
    with pytest.raises(BackendError, match="1 devices were prepared, and 0 results returned"):
        prepare(node, node.host(), "a", "phone1")
