"""From and to earlier versions, which had the prepared claims in a checkpoint as well."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from aosp_plugin.framework.dra.claim_host import Conflict
from aosp_plugin.framework.errors import ClaimRecordError
from tests.claims import DRIVER, NODE, Node, make_node, prepare

CHECKPOINT = (
    '{"format":1,"checksum":"435b5326394d879f3cdeb3a381f057e6fd9e93f11cd9a71378213ee7256a518b",'
    '"data":{"boot":"boot-1","claims":['
    '{"uid":"a","namespace":"default","name":"claim-a","state":"completed","requests":[{"name":"phone",'
    '"devices":[{"id":"phone1","pool":"node-1/00000","name":"phone1"}],'
    '"parameters":[{"source":"claim","content":{"environment":{"LOCALE":"de"}}}]}]},'
    '{"uid":"b","namespace":"default","name":"claim-b","state":"completed","requests":[{"name":"phone",'
    '"devices":[{"id":"phone2","pool":"node-1/00000","name":"phone2"},'
    '{"id":"phone3","pool":"node-1/00000","name":"phone3"}],"parameters":[]}]},'
    '{"uid":"c","namespace":"default","name":"claim-c","state":"started","requests":[{"name":"phone",'
    '"devices":[{"id":"phone4","pool":"node-1/00000","name":"phone4"}],"parameters":[]}]}]}}'
)
"""As the last version with checkpoints wrote it: two prepared claims, and a preparation that was interrupted."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node that the earlier version has left: the spec of claim a has no record, that of claim b is lost."""
    node = make_node(tmp_path)
    node.state.mkdir(parents=True)
    node.checkpoint.write_text(CHECKPOINT)
    node.cdi.mkdir()
    node.spec("a").write_text('{"cdiVersion": "0.5.0"}')
    for device_id in ("phone1", "phone2", "phone4"):
        (node.backend.directory / device_id).mkdir()
        (node.backend.directory / device_id / "in-use").touch()
    return node


def test_claims_of_a_checkpoint_are_prepared_and_get_specs_that_record_them(node: Node) -> None:
    host = node.host()
    assert not host.repair().failed
    assert {uid: record.ids for uid, record in host.specs.records.items()} == {
        "a": ("phone1",),
        "b": ("phone2", "phone3"),
    }
    assert node.specs == {"a", "b"}
    assert node.backend.mounted == {"phone1", "phone2", "phone3"}
    assert (node.backend.directory / "phone1" / "in-use").exists()
    assert [each.content for each in node.backend.parameters[0]] == [{"environment": {"LOCALE": "de"}}]
    assert not node.checkpoint.exists()
    successor = node.host()
    successor.repair()
    assert successor.specs.records == host.specs.records


def test_a_checkpoint_that_cannot_be_converted_stays_until_it_can(node: Node) -> None:
    host = node.host()
    node.backend.fail = {"prepare"}
    for _ in range(2):
        assert set(host.repair().failed) == {"a", "b"}
        assert node.checkpoint.exists()
        assert node.specs == {"a"}
        assert {"phone1", "phone2"} <= node.backend.mounted
    node.backend.fail = set()
    assert not host.repair().failed
    assert set(host.specs.records) == {"a", "b"}
    assert not node.checkpoint.exists()


def test_a_claim_that_ends_stays_ended_while_others_cannot_be_converted(node: Node) -> None:
    """Whether it has been converted or not, and also if its device is allocated again."""
    host = node.host()
    node.backend.fail = {"prepare"}
    assert set(host.repair().failed) == {"a", "b"}
    node.backend.fail = set()
    prepare(node, host, "a", "phone1")
    host.unprepare("a")
    host.unprepare("b")
    prepare(node, host, "a", "phone5")
    assert not host.repair().failed
    assert {uid: record.ids for uid, record in host.specs.records.items()} == {"a": ("phone5",)}
    assert node.backend.mounted == {"phone5"}
    assert not node.checkpoint.exists()


def test_the_device_of_a_claim_that_is_not_converted_is_taken(node: Node) -> None:
    host = node.host()
    node.backend.fail = {"prepare"}
    host.repair()
    node.backend.fail = set()
    assert isinstance(prepare(node, host, "c", "phone2"), Conflict)
    assert not isinstance(prepare(node, host, "b", "phone2", "phone3"), Conflict)
    assert "phone2" in node.backend.mounted


def test_a_checkpoint_of_another_boot_has_no_claims(node: Node) -> None:
    node.boot("boot-2")
    host = node.host()
    assert not host.repair().failed
    assert not host.specs.records
    assert node.specs == node.backend.mounted == set()
    assert not node.checkpoint.exists()


def test_specs_count_more_than_the_checkpoint(node: Node) -> None:
    """An earlier version that still runs may have left it behind; its claim b has lost a device since."""
    host = node.host()
    prepare(node, host, "d", "phone3")
    assert not host.repair().failed
    assert set(host.specs.records) == {"a", "d"}


@pytest.mark.parametrize("content", [b"null", b"[]", b"\xff", b"{" * 100_000, b'{"format": 1}', b'{"format": 2}'])
def test_what_is_no_checkpoint_is_kept_aside(node: Node, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    node.checkpoint.write_bytes(content)
    node.host().repair()
    assert (node.state / "checkpoint.json.rejected").read_bytes() == content
    assert not node.checkpoint.exists()
    assert "checkpoint of the claims rejected, renamed" in [record.message for record in caplog.records]


def test_any_changed_byte_is_noticed(node: Node) -> None:
    for position in range(0, len(CHECKPOINT), 7):
        content = bytearray(CHECKPOINT.encode())
        content[position] ^= 1
        node.checkpoint.write_bytes(content)
        node.host().repair()
        assert (node.state / "checkpoint.json.rejected").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_file_without_content_is_one_that_a_crash_of_the_host_has_left(node: Node, content: bytes) -> None:
    node.checkpoint.write_bytes(content)
    assert not node.host().repair().failed
    assert not node.checkpoint.exists()


def test_a_checkpoint_that_cannot_be_read_is_an_error_that_names_it(node: Node) -> None:
    node.checkpoint.unlink()
    node.checkpoint.mkdir()
    host = node.host()
    for _ in range(2):  # no device is released before all prepared claims are known
        with pytest.raises(ClaimRecordError) as raised:
            host.repair()
        assert str(raised.value) == f"cannot read the checkpoint {node.checkpoint}: Is a directory"


def test_the_checkpoint_of_a_version_that_runs_at_the_same_time_means_that_it_may_have_removed_specs(
    node: Node,
) -> None:
    node.checkpoint.unlink()
    host = node.host()
    prepare(node, host, "d", "phone5")
    node.checkpoint.write_text(CHECKPOINT)
    node.spec("d").unlink()
    assert not isinstance(prepare(node, host, "e", "phone5"), Conflict)


# -- the way back: the structs and the check of the last version with checkpoints, which recovers a lost checkpoint


class _Device(msgspec.Struct, frozen=True):
    id: str
    pool: str
    name: str


class _Parameters(msgspec.Struct, frozen=True):
    source: Literal["class", "claim"]
    content: Any


class _Request(msgspec.Struct, frozen=True):
    name: str
    devices: tuple[_Device, ...]
    parameters: tuple[_Parameters, ...] = ()


class _Claim(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    state: Literal["started", "completed"]
    requests: tuple[_Request, ...]


class _Carried(msgspec.Struct):
    boot: str
    claim: _Claim


def test_the_last_version_with_checkpoints_reads_the_specs(node: Node) -> None:
    node.host().repair()
    annotation = json.loads(node.spec("a").read_text())["annotations"][f"{DRIVER}/claim"]
    carried = msgspec.json.decode(annotation, type=_Carried)
    device = _Device("phone1", f"{NODE}/00000", "phone1")
    parameters = _Parameters("claim", {"environment": {"LOCALE": "de"}})
    request = _Request("phone", (device,), (parameters,))
    assert carried == _Carried("boot-1", _Claim("a", "default", "claim-a", "completed", (request,)))


def test_the_checkpoint_of_these_tests_is_valid() -> None:
    envelope = json.loads(CHECKPOINT)
    data = CHECKPOINT.partition('"data":')[2][:-1]
    assert hashlib.sha256(data.encode()).hexdigest() == envelope["checksum"]
