"""Phones on a real binderfs: sets at Android's paths, recreation for each container, and leaks."""

import os
from collections.abc import AsyncIterator
from typing import Final

import pytest

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import AdmissionError
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import binderfs_mounts
from tests.e2e.kernel.containers import HOLDING, HOST_ID, check, start
from tests.e2e.kernel.phones import MANAGED, managed_by
from tests.e2e.kernel.world import RESOURCE, World, checked_device_tool, own

SYSTEM, OTHER = 1000, 2000
"""User IDs; the first one is that of Android's servicemanager."""

_PHONES: Final = """\
isolation: strict
sets: {size: 3}
container_paths: [/dev/binder, /dev/hwbinder, /dev/vndbinder]
"""


@pytest.fixture(scope="module", autouse=True)
async def plugin(shared_world: World) -> AsyncIterator[None]:
    """Serve 12 binder devices as phones that are recreated."""
    await checked_device_tool("create", "--count", "12")
    await shared_world.serve_with(f"{_PHONES}recreate: on-start\n")
    await shared_world.healthy(4)
    yield
    await shared_world.stop()
    await checked_device_tool("delete")


@pytest.fixture(scope="module")
async def not_recreated(shared_world: World) -> None:
    """Serve them without recreate."""
    await shared_world.serve_with(_PHONES)
    await shared_world.healthy(4)


@pytest.mark.core
async def test_ready(world: World) -> None:
    """With sets of 3, container paths and recreate: on-start, 12 binder devices are 4 phones."""
    await world.healthy(4)


@pytest.mark.core
async def test_phone(world: World, runtime: str) -> None:
    """A phone has /dev/binder, /dev/hwbinder and /dev/vndbinder; user 1000 becomes context manager of each."""
    container = await world.started(f"phone-{runtime}")
    expected = managed_by(SYSTEM) | {f"manage /dev/{name}": "EBUSY" for name in own(container)}
    await check(runtime, container, expected)


@pytest.mark.core
async def test_next_user(world: World, runtime: str) -> None:
    """The next container with the same phone, of another user, becomes context manager: devices are recreated."""
    allocated = []
    for user in (SYSTEM, OTHER):
        container = await world.started(f"user-{user}-{runtime}")
        allocated.append(own(container))
        await check(runtime, container, managed_by(user))
        await world.finish()
    assert allocated[0] == allocated[1], f"other devices: {allocated}"


async def test_user_namespace(world: World, runtime: str) -> None:
    """In a user namespace a container becomes context manager at all three paths, right after one of another user."""
    container = await world.started(f"mapped-{runtime}")
    await check(runtime, container, MANAGED, first_host_id=HOST_ID)


@pytest.mark.core
async def test_no_flap(world: World) -> None:
    """Recreation is invisible to the kubelet: all devices stay Healthy, and no temporary device is left."""
    view = world.kubelet.resource(RESOURCE)
    assert (view.allocatable, view.capacity) == (4, 4), f"{view.allocatable} {view.capacity}"
    assert world.logged().count("devices changed") == 1, world.logged()[-400:]
    assert sorted(binderfs.device_names(BINDERFS)) == sorted(f"aosp_binder{number}" for number in range(12))


@pytest.mark.core
async def test_leaked(world: World) -> None:
    """A leftover process of the first container cannot reach the second one: its context has no manager (ESRCH)."""
    await _leaked(world, "ESRCH")


@pytest.mark.usefixtures("not_recreated")
async def test_never(world: World) -> None:
    """Counter-example: without recreate the leftover process reaches the second container's context manager."""
    await _leaked(world, "ok")


@pytest.mark.usefixtures("not_recreated")
async def test_another_user(world: World, runtime: str) -> None:
    """Counter-example: without recreate the next container's user fails with EPERM on each device."""
    for user, outcome in ((SYSTEM, "ok"), (OTHER, "EPERM")):
        container = await world.started(f"remembered-{user}-{runtime}")
        expected = {f"become {user}": "ok", **dict.fromkeys(MANAGED, outcome)}
        if user == SYSTEM:
            _recreate(own(container))
            await world.healthy(4)
        await check(runtime, container, expected)
        await world.finish()


async def test_full(world: World) -> None:
    """A device that cannot be recreated, because max= is reached, is Unhealthy; its container does not start.

    With a larger max= the plugin recreates it, and it is Healthy again.
    """
    await world.serve_with(f"{_PHONES}recreate: on-start\n")
    await world.healthy(4)
    binderfs_mounts.limit(BINDERFS, 12)
    with pytest.raises(AdmissionError, match=r"aosp_binder0.*max="):
        await world.started("refused")
    await world.healthy(3, unhealthy=1)
    binderfs_mounts.limit(BINDERFS, 64)
    await world.reload()
    await world.healthy(4)


async def _leaked(world: World, outcome: str) -> None:
    """Keep a process of one container running, and check whether it reaches the next container."""
    first = await world.started("first")
    stays = {"keep /dev/binder": "ok", "manage /dev/hwbinder": "ok", **HOLDING}
    stays |= {"call-kept": outcome, "call /dev/binder": outcome}
    leaving = await start("runc", first, stays)
    await leaving.is_up()
    await world.finish()
    second = await world.started("second")
    assert own(first) == own(second)
    staying = await start("runc", second, {"manage /dev/binder": "ok", "manage /dev/vndbinder": "ok", **HOLDING})
    await staying.is_up()
    await leaving.end()
    await staying.end()


def _recreate(names: list[str]) -> None:
    """Recreate devices, so that no user was context manager of them."""
    for name in names:
        binderfs.remove_device(BINDERFS, name)
        binderfs.add_device(BINDERFS, name)
        os.chmod(f"{BINDERFS}/{name}", 0o666)
