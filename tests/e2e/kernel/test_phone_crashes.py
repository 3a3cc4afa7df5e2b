"""The plugin is killed before each system call of mounting a phone and of replacing its binderfs.

strace kills it: ``inject=SYSCALL:signal=KILL`` at the entry of a system call, before its effect. So killing it at one
call is also killing it after the one before.
"""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

import pytest

from kubelet_standin import AdmissionError, Container, Pod
from tests.e2e.common.waiting import PATIENCE
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.phones import COUNT, RESOURCE, phone_of
from tests.e2e.kernel.world import DIRECTORY, World, until

_TRACE: Final = DIRECTORY / "strace.log"

_MOUNT: Final = {
    **dict.fromkeys(("fsopen:1", "fsconfig:1", "fsconfig:2", "fsmount:1", "chmod:1", "move_mount:1"), 0),
    "fsopen:2": 1,
    "move_mount:2": 2,
}
"""System calls of a start, each with its number, and the phones that are mounted when it is killed there."""
_REPLACE: Final = ("fsopen:1", "fsconfig:1", "fsconfig:2", "fsmount:1", "chmod:1", "umount2:1", "move_mount:1")


@pytest.mark.usefixtures("phones_unmounted")
async def test_killed_mounting(world: World) -> None:
    """Killed before each call that mounts a phone, each next start goes on; no phone is half-made, or mounted twice."""
    for step, count in _MOUNT.items():
        await world.serve_with(f"phones: {{count: {COUNT}}}\n", resource=RESOURCE, wrapper=_injecting(step))
        await _killed(world, step)
        assert len(phones.mounted()) == count, f"{step}: {phones.mounted()}"
        phones.require_whole(phones.mounted())
    await world.start_again()
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))


@pytest.mark.usefixtures("four_phones")
async def test_killed_replacing(world: World) -> None:
    """Killed before each call that replaces a phone's binderfs: the next start mends it, and its tenant starts."""
    pod = Pod("interrupted", [Container("main", {RESOURCE: 1})])
    phone = phone_of((await world.kubelet.admit(pod)).containers["main"])
    others = {other: device for other, device in phones.mounted().items() if other != phone}
    gone = []
    for step in _REPLACE:
        await _attached(world, step)
        with contextlib.suppress(AdmissionError):
            await world.kubelet.start_container(pod, "main")
        await _killed(world, step)
        mounted = phones.mounted()
        assert {other: device for other, device in mounted.items() if other != phone} == others, f"{step}: {mounted}"
        phones.require_whole(mounted)
        gone += [step] if phone not in mounted else []
        await world.start_again()
        await world.healthy(COUNT)
        phones.require_whole(phones.phones(COUNT))
        container = await world.kubelet.start_container(pod, "main")
        await check("crun", container, phones.managed_by(1000))
    assert gone == ["move_mount:1"], f"without the phone after: {gone}"
    await world.kubelet.finish(pod)


def _injecting(step: str) -> tuple[str, ...]:
    """Return the command that kills a process at a system call."""
    call, number = step.split(":")
    inject = f"inject={call}:signal=KILL:when={number}"
    return ("strace", "--follow-forks", "-qq", f"--output={_TRACE}", f"--trace={call}", "-e", inject)


async def _attached(world: World, step: str) -> None:
    """Attach strace to the plugin."""
    assert world.process is not None
    pid = world.process.pid
    await asyncio.create_subprocess_exec(*_injecting(step), f"--attach={pid}")
    tasks = list(Path(f"/proc/{pid}/task").glob("*/status"))
    await until(lambda: all("TracerPid:\t0\n" not in task.read_text() for task in tasks), "strace is attached")


async def _killed(world: World, step: str) -> None:
    """Wait for the end of the plugin, by SIGKILL."""
    assert world.process is not None
    async with asyncio.timeout(PATIENCE):
        code = await world.process.wait()
    # strace ends as the process that it started.
    assert code == -signal.SIGKILL, f"{step}: ended with {code}: {world.logged()[-300:]}"
    world.process = None
    await world.kubelet.wait_for(lambda kubelet: not kubelet.resource(RESOURCE).connected, PATIENCE)
