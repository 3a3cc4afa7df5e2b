"""Binderfs that a container mounts by itself, and the AppArmor profile for phones, which denies them.

They take minor numbers that all phones of the host share. docs/security.md has the threat.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Mapping

import pytest

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import AdmissionError
from tests.e2e.kernel import phones
from tests.e2e.kernel.confinement import PHONE_PROFILE
from tests.e2e.kernel.containers import HOLDING, check, start
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import ADMIN, COUNT, REDROID, phone_of
from tests.e2e.kernel.world import DIRECTORY, World, checked

pytestmark = pytest.mark.usefixtures("four_phones")


async def test_profiled(world: World, runtime: str) -> None:
    """With the profile, redroid's capabilities mount tmpfs or overlay, and nothing of the host, and write no sysctl."""
    await _check(world, runtime, phones.profiled(), PHONE_PROFILE)


async def test_profiled_in_namespace(world: World, runtime: str) -> None:
    """Nor does a user namespace of its own mount one of these file systems (EACCES)."""
    # Since Linux 5.12, a namespace with a root user of its own requires CAP_SETFCAP, which ADMIN has.
    await _check(world, runtime, phones.profiled_in_namespace(), PHONE_PROFILE, ADMIN)


async def test_detached(world: World) -> None:
    """Not denied: a binderfs of fsopen(2), which the profile keeps from being attached since Linux 6.7."""
    await _check(world, "runc", phones.detached(os.uname().release), PHONE_PROFILE)


async def test_without_profile(world: World) -> None:
    """Counter-example: without a profile, the same container mounts both, and can write sysctls of the host."""
    await _check(world, "runc", phones.without_profile(), "")


async def test_filter_detached(world: World, runtime: str, bits: str) -> None:
    """Counter-example: with the runtime's seccomp filter, bpf(2) removes the device filter, whatever the profile."""
    await _check(world, runtime, phones.unfiltered(), PHONE_PROFILE, bits=bits)


async def test_filter_kept(world: World, runtime: str, bits: str) -> None:
    """With the seccomp profile for phones, it does not; nor is there fsopen(2); the container mounts as without it."""
    container = await world.started(f"mounting-{runtime}")
    await check(runtime, container, phones.filtered(), capabilities=REDROID, filtered=True, bits=bits)


async def test_in_own_cgroup(world: World) -> None:
    """In a writable cgroup, it makes cgroups with the profile, opens no other phone, and keeps limits by nsdelegate."""
    for delegated in (True, False):
        option = "nsdelegate" if delegated else "memory_recursiveprot"  # of which one replaces the other
        await checked("mount", "-o", f"remount,{option}", "cgroup2", "/sys/fs/cgroup")
        neighbour = phone_of(await world.started("neighbour"))
        expected = phones.in_own_cgroup(neighbour, delegated=delegated)
        await _check(world, "runc", expected, PHONE_PROFILE)
        await world.finish()


async def test_used_up(world: World) -> None:
    """All minor numbers in use: phones go on, a start fails and says how to find who has them; later ones succeed."""
    container = await world.started("running")
    running = await start("runc", container, {**HOLDING, **phones.MANAGED, f"version {SHARED}/binder": "8"})
    await running.is_up()
    before = phones.mounted()
    command = (sys.executable, "-m", "tests.e2e.kernel.take_minors", str(DIRECTORY / "taken"))
    taker = await asyncio.create_subprocess_exec("unshare", "--mount", *command, stdout=asyncio.subprocess.PIPE)
    assert taker.stdout is not None
    try:
        taken = (await taker.stdout.readline()).decode().strip()
        with pytest.raises(AdmissionError) as refused:
            await world.started("late")
        message = refused.value.message
        sys.stdout.write(f"{taken}\n{message}\n")
        found = await checked("sh", "-c", re.findall("on the host, by: (grep .* tail -3)", message)[0])
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
    await world.finish_all()
    await world.healthy(COUNT)
    last = await world.started("afterwards")
    await check("runc", last, phones.whole(phone_of(last)) | phones.sealed())


async def _check(
    world: World,
    runtime: str,
    expected: Mapping[str, str],
    profile: str,
    capabilities: tuple[str, ...] = REDROID,
    bits: str = "",
) -> None:
    container = await world.started(f"mounting-{runtime}")
    await check(runtime, container, expected, capabilities=capabilities, profile=profile, bits=bits)
    await world.finish()
