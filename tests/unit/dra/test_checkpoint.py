"""The checkpoint of a DRA driver: what is read again, and what is not."""

from __future__ import annotations

import errno
import json
import threading
import tracemalloc
from typing import TYPE_CHECKING, NoReturn

import pytest

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.dra.allocations import MAX_PARAMETER_BYTES
from aosp_plugin.framework.dra.checkpoint import Checkpoint
from aosp_plugin.framework.dra.records import ClaimRecord, DeviceRecord, ParametersRecord, RequestRecord, boot_id
from aosp_plugin.framework.dra.state_lock import StateLock
from aosp_plugin.framework.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = RequestRecord(
    "main/fast", (DeviceRecord("phone1", "node/00000", "phone1"),), (ParametersRecord("claim", {"é\u2028": [1, None]}),)
)
CLAIMS = {uid: ClaimRecord(uid, "default", f"claim-{uid}", "completed", (REQUEST,)) for uid in "ab"}


def test_a_successor_reads_what_was_written(tmp_path: Path) -> None:
    Checkpoint(str(tmp_path), "boot").save(CLAIMS)
    assert Checkpoint(str(tmp_path), "boot").load() == (CLAIMS, "file")
    assert (tmp_path / "checkpoint.json").stat().st_mode & 0o777 == 0o600


def test_memory_for_the_largest_claims_is_bounded(tmp_path: Path) -> None:
    """120 phones, each with as many parameters as a request may have. The driver's limit is 256 MiB, its base 74."""
    parameters = ParametersRecord("claim", {"environment": {f"A{number}": "x" * 4000 for number in range(8)}})
    claims = {
        str(number): ClaimRecord(
            str(number), "default", "a", "completed", (RequestRecord("main", REQUEST.devices, (parameters,)),)
        )
        for number in range(120)
    }
    tracemalloc.start()
    try:
        Checkpoint(str(tmp_path), "boot").save(claims)
        assert len(Checkpoint(str(tmp_path), "boot").load().claims) == 120
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert (tmp_path / "checkpoint.json").stat().st_size < 120 * (MAX_PARAMETER_BYTES + 1024)


def test_a_missing_file_and_one_of_another_boot_have_no_claims(tmp_path: Path) -> None:
    assert Checkpoint(str(tmp_path), "boot").load() == ({}, "missing")
    Checkpoint(str(tmp_path), "boot").save(CLAIMS)
    assert Checkpoint(str(tmp_path), "other").load() == ({}, "other boot")


def test_a_file_that_another_process_has_replaced_is_read_again(tmp_path: Path) -> None:
    """Even if inode, size and time are the same."""
    first, second = Checkpoint(str(tmp_path), "boot"), Checkpoint(str(tmp_path), "boot")
    first.save(CLAIMS)
    second.save({"a": CLAIMS["a"]})
    assert set(first.load().claims) == {"a"}
    second.save({"b": CLAIMS["b"]})
    assert set(first.load().claims) == {"b"}


@pytest.mark.parametrize("position", range(0, 700, 7))
def test_any_changed_byte_is_noticed(tmp_path: Path, position: int) -> None:
    checkpoint = Checkpoint(str(tmp_path), "boot")
    checkpoint.save(CLAIMS)
    path = tmp_path / "checkpoint.json"
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1
    path.write_bytes(content)
    for reader in (checkpoint, Checkpoint(str(tmp_path), "boot")):
        source = reader.load().source
        assert source in {"rejected", "missing"}
    assert (tmp_path / "checkpoint.json.rejected").read_bytes() == content


@pytest.mark.parametrize("content", [b"null", b"[]", b"\xff", b"{" * 100_000, b'{"format": 1}', b'{"format": "1"}'])
def test_what_is_no_checkpoint_is_kept_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.json").write_bytes(content)
    assert Checkpoint(str(tmp_path), "boot").load() == ({}, "rejected")
    assert (tmp_path / "checkpoint.json.rejected").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_file_without_content_is_one_that_a_crash_of_the_host_has_left(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.json").write_bytes(content)
    assert Checkpoint(str(tmp_path), "boot").load() == ({}, "missing")


def test_a_newer_format_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoint.json").write_text(json.dumps({"format": 2, "anything": []}))
    assert Checkpoint(str(tmp_path), "boot").load().source == "rejected"
    (record,) = caplog.records
    assert vars(record)["error"] == "its format is 2, and this program reads 1"


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").mkdir()
    checkpoint = Checkpoint(str(tmp_path), "boot")
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint /.*/checkpoint.json: Is a directory"):
        checkpoint.load()
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint /.*/checkpoint.json: "):
        checkpoint.save(CLAIMS)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]


def test_names_of_a_record() -> None:
    assert REQUEST.main_name == "main"
    assert CLAIMS["a"].label == "default/claim-a (UID a)"


def test_the_boot_id_of_this_host_is_known() -> None:
    assert len(boot_id()) == 36


def test_a_shorter_checkpoint_is_written_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(str(tmp_path), "boot")
    checkpoint.save({"a": CLAIMS["a"]})

    def no_space(*_: object, **_options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_file, "write_temporary", no_space)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoint.save(CLAIMS)
    assert set(Checkpoint(str(tmp_path), "boot").load().claims) == {"a"}
    checkpoint.save({})
    assert Checkpoint(str(tmp_path), "boot").load() == ({}, "file")


def test_a_checkpoint_that_cannot_be_renamed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text("null")
    (tmp_path / "checkpoint.json.rejected" / "x").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="cannot rename the checkpoint"):
        Checkpoint(str(tmp_path), "boot").load()


# -- the lock


def test_the_lock_excludes_other_processes(tmp_path: Path) -> None:
    directory = tmp_path / "plugins" / "driver"
    first, second = StateLock(str(directory)), StateLock(str(directory))
    with first.held(), pytest.raises(CheckpointError, match=r"another process has had the lock /.*/lock for 0 s"):
        second.held(0).__enter__()
    with second.held(0):
        pass
    assert directory.stat().st_mode & 0o777 == 0o750


def test_a_deleted_lock_file_does_not_break_the_exclusion(tmp_path: Path) -> None:
    """A process that waits for the deleted file locks the new one."""
    directory = tmp_path / "driver"
    order = []
    waiting = threading.Event()

    class Waiting(StateLock):
        def _try(self) -> int | None:
            descriptor = super()._try()
            waiting.set()
            return descriptor

    def wait() -> None:
        with Waiting(str(directory)).held():
            order.append("second")

    with StateLock(str(directory)).held():
        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        order.append("first")
    thread.join()
    (directory / "lock").unlink()
    with StateLock(str(directory)).held(0):
        pass
    assert order == ["first", "second"]


def test_a_lock_in_an_impossible_place_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot lock /.*/file/driver/lock: Not a directory"):
        StateLock(str(tmp_path / "file" / "driver")).held(0).__enter__()
