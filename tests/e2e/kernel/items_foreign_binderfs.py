"""Items: binderfs that a container mounts by itself, and the AppArmor profile for phones, which denies them.

They take minor numbers that all phones of the host share. docs/security.md has the threat.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import AdmissionError
from tests.e2e.kernel import items_binderfs_phones, phones
from tests.e2e.kernel.confinement import PHONE_PROFILE
from tests.e2e.kernel.containers import check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.items_binderfs_phones import COUNT
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import ADMIN, NAMES, REDROID, phone_of
from tests.e2e.kernel.world import DIRECTORY, until
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.kernel.world import World


async def profiled(world: World, runtime: str) -> None:
    """With the profile, redroid's capabilities mount tmpfs or overlay, and nothing of the host, and write no sysctl."""
    await _check(world, runtime, phones.profiled(), PHONE_PROFILE)


async def profiled_in_namespace(world: World, runtime: str) -> None:
    """Nor does a user namespace of its own mount one of these file systems (EACCES)."""
    # Since Linux 5.12, a namespace with a root user of its own requires CAP_SETFCAP, which ADMIN has.
    await _check(world, runtime, phones.profiled_in_namespace(), PHONE_PROFILE, ADMIN)


async def detached(world: World, runtime: str) -> None:
    """Not denied: a binderfs of fsopen(2), which the profile keeps from being attached since Linux 6.7."""
    await _check(world, runtime, phones.detached(os.uname().release), PHONE_PROFILE)


async def without_profile(world: World, runtime: str) -> None:
    """Counter-example: without a profile, the same container mounts both, and can write sysctls of the host."""
    await _check(world, runtime, phones.without_profile(), "")


async def filter_detached(world: World, runtime: str) -> None:
    """Counter-example: with the runtime's seccomp filter, bpf(2) removes the device filter, whatever the profile."""
    await _check(world, runtime, phones.unfiltered(), PHONE_PROFILE)


async def filter_kept(world: World, runtime: str) -> None:
    """With the seccomp profile for phones, it does not; nor is there fsopen(2); the container mounts as without it."""
    container = await world.started(f"mounting-{runtime}")
    await check(runtime, container, phones.filtered(), probe=world.probe, capabilities=REDROID, filtered=True)
    await world.finish()


async def in_own_cgroup(world: World, runtime: str) -> None:
    """In a writable cgroup, it makes cgroups with the profile, opens no other phone, and keeps limits by nsdelegate."""
    for delegated in (True, False):
        option = "nsdelegate" if delegated else "memory_recursiveprot"  # of which one replaces the other
        await asyncio.to_thread(run, "mount", "-o", f"remount,{option}", "cgroup2", "/sys/fs/cgroup")
        neighbour = phone_of(await world.started(f"neighbour-{runtime}"))
        expected = phones.in_own_cgroup(neighbour, delegated=delegated)
        await _check(world, runtime, expected, PHONE_PROFILE)
        await world.finish()


async def used_up(world: World) -> None:
    """All minor numbers in use: phones go on, a start fails and says how to find who has them; later ones succeed."""
    container = await world.started("running")
    expected = {"create /up": "ok", "await /go": "ok"}
    expected |= {f"manage /dev/{name}": "ok" for name in NAMES} | {f"version {SHARED}/binder": "8"}
    running = await start("runc", container, expected, probe=world.probe)
    await until((running.bundle / "rootfs/up").exists, "the container runs")
    before = phones.mounted()
    command = (sys.executable, "-m", "tests.e2e.kernel.take_minors", str(DIRECTORY / "taken"))
    taker = await asyncio.create_subprocess_exec("unshare", "--mount", *command, stdout=asyncio.subprocess.PIPE)
    assert taker.stdout is not None
    try:
        taken = (await taker.stdout.readline()).decode().strip()
        message = await _refused(world, "late")
        sys.stdout.write(f"{taken}\n{message}\n")
        found = await _output(re.findall("on the host, by: (grep .* tail -3)", message)[0])
        running.release()
        await running.end()
    finally:
        with contextlib.suppress(ProcessLookupError):
            taker.terminate()
        await taker.wait()
    assert taken.count("[Errno 28]") == 2, taken
    text = f"all {binderfs.ALL_MINORS} minor numbers of the binderfs mounts are in use"
    assert text in message, message
    assert text in world.logged(), world.logged()[-500:]
    assert f"/proc/{taker.pid}/mountinfo:" in found, found
    assert phones.mounted() == before, "the host's phones have changed"
    await world.finish()
    await world.finish()
    await world.healthy(COUNT)
    last = await world.started("afterwards")
    await check("runc", last, phones.whole(phone_of(last)) | phones.sealed(), probe=world.probe)
    await world.finish()


async def _output(command: str) -> str:
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def _refused(world: World, name: str) -> str:
    try:
        container = await world.started(name)
    except AdmissionError as error:
        return error.message
    raise AssertionError(f"{name} has {phone_of(container)}")


async def _check(
    world: World, runtime: str, expected: Mapping[str, str], profile: str, capabilities: tuple[str, ...] = REDROID
) -> None:
    container = await world.started(f"mounting-{runtime}")
    await check(runtime, container, expected, probe=world.probe, capabilities=capabilities, profile=profile)
    await world.finish()


ITEMS: Final[list[Item[World]]] = [
    item(items_binderfs_phones.unprepared),
    *for_each_runtime(profiled, profiled_in_namespace, filter_detached, filter_kept),
    *for_each_runtime(detached, in_own_cgroup, without_profile, runtimes=["runc"]),
    item(used_up),
    item(items_binderfs_phones.ended),
]
