"""The file system of the tests of hangs: what it shows, and that exactly the right calls wait."""

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.hanging_fs import HangingFileSystem, available

STAT = "import os, sys; os.stat(sys.argv[1])"


def test_shows_the_source_and_writes_to_it(hanging_file_system: HangingFileSystem) -> None:
    directory, source = hanging_file_system.directory, hanging_file_system.source
    os.mknod(f"{source}/null", 0o20600, os.makedev(1, 3))
    os.symlink("null", f"{source}/link")
    assert os.listdir(directory) == ["link", "null"]
    assert os.stat(f"{directory}/link").st_rdev == os.makedev(1, 3)
    assert os.stat(directory).st_dev != os.stat(source).st_dev
    os.mkdir(f"{directory}/sub")
    with open(f"{directory}/sub/new", "wb") as file:
        file.write(b"x" * 300_000)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{directory}/sub/new", f"{directory}/file")
    os.rmdir(f"{directory}/sub")
    with open(f"{directory}/file", "rb") as file:
        assert file.read() == b"x" * 300_000
    os.unlink(f"{source}/null")  # the kernel has cached nothing
    assert not os.path.exists(f"{directory}/link")
    for number in range(1000):
        os.mkdir(f"{source}/{number:0>100}")
    assert len(os.listdir(directory)) == 1002


async def test_calls_wait_until_the_hang_ends(hanging_file_system: HangingFileSystem) -> None:
    hanging_file_system.hang()
    calls = [asyncio.create_task(asyncio.to_thread(os.stat, hanging_file_system.directory)) for _ in range(3)]
    await hanging_file_system.until_waiting(3)
    assert not any(call.done() for call in calls)
    hanging_file_system.release()
    await asyncio.gather(*calls)
    assert hanging_file_system.waiting() == 0


async def test_only_a_deadly_signal_ends_a_call(hanging_file_system: HangingFileSystem) -> None:
    """Python handles SIGINT, so its thread goes on waiting; SIGKILL ends the process."""
    hanging_file_system.hang()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STAT, hanging_file_system.directory)
    await hanging_file_system.until_waiting()
    process.send_signal(signal.SIGINT)
    assert hanging_file_system.waiting() == 1
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    while hanging_file_system.waiting():
        pass


@pytest.mark.skipif(not available(), reason="mounts a FUSE file system, which requires root and /dev/fuse")
async def test_end_fails_the_calls_that_wait_and_unmounts(tmp_path: Path) -> None:
    with HangingFileSystem(tmp_path / "fuse", killable=False) as hanging:
        hanging.hang()
        call = asyncio.create_task(asyncio.to_thread(os.stat, hanging.directory))
        await hanging.until_waiting()
    with pytest.raises(OSError, match=os.strerror(errno.ECONNABORTED)):
        await call
    assert not os.listdir(hanging.directory)
