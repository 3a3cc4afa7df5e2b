"""From and to earlier versions, which had the prepared claims in a checkpoint as well."""

from pathlib import Path

import pytest

from tests.claims import Node, make_node

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


def test_a_claim_that_ends_before_the_first_repair_is_not_adopted_by_it(node: Node) -> None:
    """The kubelet may ask before: for a claim without a spec that records it, only the checkpoint says that it was."""
    host = node.host()
    assert not host.unprepare("b")
    assert not host.repair().failed
    assert set(host.specs.records) == {"a"}


def test_what_is_no_checkpoint_is_kept_aside(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Any changed byte is noticed."""
    changed = bytearray(CHECKPOINT.encode())
    changed[200] ^= 1
    for content in (b"null", b"\xff", b"{" * 100_000, b'{"format": 2}', bytes(changed)):
        node.checkpoint.write_bytes(content)
        node.host().repair()
        assert (node.state / "checkpoint.json.rejected").read_bytes() == content
        assert not node.checkpoint.exists()
    assert "checkpoint of the claims rejected, renamed" in [record.message for record in caplog.records]


# -- the way back: the structs and the check of the last version with checkpoints, which recovers a lost checkpoint
