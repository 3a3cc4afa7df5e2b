"""hack/binder_devices.py on a real binderfs."""

import asyncio
import os
from collections.abc import Iterable
from typing import Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS, COMMAND
from tests.e2e.kernel.world import Result, checked_device_tool, run, until

MANY: Final = 10_000


async def test_lives() -> None:
    """create makes 10,000 devices in a binderfs, and a link to each; list shows them by number; delete removes all."""
    done = await run(*COMMAND, "create", "--count", str(MANY))
    _require(done, f"/dev: {MANY} created, 0 already present (binder devices at {BINDERFS})\n")
    assert set(binderfs.device_names(BINDERFS)) == set(_names(MANY))
    wrong = [name for name in _names(MANY) if os.readlink(f"/dev/{name}") != f"{BINDERFS}/{name}"]
    assert not wrong, f"links that lead elsewhere: {wrong[:5]}"
    lines = "".join(f"{name}\tbinder\t{BINDERFS}/{name}\n" for name in _names(MANY))
    _require(await run(*COMMAND, "list"), f"{lines}/dev: {MANY} binder\n")
    _require(await run(*COMMAND, "delete"), f"/dev: {MANY} deleted\n")
    _assert_nothing_left()


async def test_killed() -> None:
    """Killed in the middle, create is completed by another one, and leaves nothing that delete does not remove."""
    for completed in (True, False):
        process = await asyncio.create_subprocess_exec(*COMMAND, "create", "--count", str(MANY))
        await until(lambda: os.path.lexists("/dev/aosp_binder99"), "100 exist")
        process.kill()
        await process.wait()
        assert 0 < len(binderfs.device_names(BINDERFS)) < MANY
        if completed:
            await checked_device_tool("create", "--count", str(MANY))
            assert set(_names(MANY)) == {name for name in os.listdir("/dev") if name.startswith("aosp_binder")}
        await checked_device_tool("delete")
        _assert_nothing_left()


def _assert_nothing_left() -> None:
    left = [name for name in os.listdir("/dev") if "binder" in name]
    assert not left, f"left in /dev: {left[:5]}"
    assert not os.path.ismount(BINDERFS), "still mounted"
    assert not os.listdir(BINDERFS)


def _require(done: Result, out: str) -> None:
    """Check that a command has succeeded, and its output."""
    assert done == (0, out, ""), f"exit code {done.code}, out {done.out[:300]!r}, err {done.err[:300]!r}"


def _names(count: int) -> Iterable[str]:
    return [f"aosp_binder{number}" for number in range(count)]
