"""The thread that writes standard error, with real pipes and files."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aosp_plugin.framework.service.logs import LIMIT, QueuedWriter
from tests.full_pipe import FullPipe
from tests.support import PATIENCE, until


async def test_records_beyond_the_limit_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The first ones stay in order, which have the cause. The count is logged when everything else is written."""
    with FullPipe() as pipe:
        writer = QueuedWriter(pipe.writer)
        writer.write(b"record 0\n")
        await until(writer._records.empty)  # the thread has it
        for number in range(1, LIMIT + 4):
            assert writer.dropped == max(0, number - LIMIT - 1)
            writer.write(f"record {number}\n".encode())
        assert not writer.drain(0.0)
        assert pipe.read_until(f"record {LIMIT}").splitlines() == [f"record {number}" for number in range(LIMIT + 1)]
        assert writer.drain(PATIENCE)
        writer.write(b"another one\n")
        assert writer.drain(PATIENCE)
    (record,) = [vars(record) for record in caplog.records if record.name.endswith("logs")]
    assert (record["levelno"], record["message"], record["count"]) == (logging.WARNING, "log records dropped", 3)


@pytest.mark.parametrize("refusing", ["/dev/full", "pipe without a reader"])
def test_records_that_cannot_be_written_are_dropped_and_counted(
    tmp_path: Path, refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that has space again, and journald that runs again, get the next record."""
    if refusing == "/dev/full":
        descriptor = os.open(refusing, os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    writer = QueuedWriter(descriptor)
    writer.write(b"lost\n")
    writer.write(b"lost\n")
    assert writer.drain(PATIENCE)
    assert writer.dropped == 2
    with (tmp_path / "log").open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    writer.write(b"written\n")
    assert writer.drain(PATIENCE)
    assert (tmp_path / "log").read_bytes() == b"written\n"
    assert [vars(record)["count"] for record in caplog.records if record.name.endswith("logs")] == [2]
    os.close(descriptor)


PROGRAM = """
import logging, threading, warnings
from aosp_plugin.framework.service import logs

logs.replace_stderr()
warnings.warn("a warning")
logging.warning("before logging is set up")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise SystemError("uncaught")
"""


def test_nothing_of_python_waits_for_a_reader() -> None:
    """Warnings and tracebacks, for example, and the end of the process."""
    command = [sys.executable, "-c", PROGRAM]
    with FullPipe() as pipe:
        assert subprocess.run(command, stderr=pipe.writer, timeout=PATIENCE, check=False).returncode == 1  # noqa: S603
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    for text in ("a warning", "before logging is set up", "ZeroDivisionError", "SystemError: uncaught"):
        assert text in ended.stderr


def test_grpc_writes_nothing_on_its_own() -> None:
    program = """
import aosp_plugin.framework, grpc, contextlib
from concurrent import futures
with contextlib.suppress(RuntimeError):
    grpc.server(futures.ThreadPoolExecutor()).add_insecure_port("unix:/nonexistent/socket")
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, check=True)  # noqa: S603
    assert ended.stderr == b""
