"""Items: phones on a real binderfs: sets at Android's paths, recreation for each container, and leaks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import AdmissionError
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import binderfs_mounts
from tests.e2e.kernel.containers import HOST_ID, check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.world import RESOURCE, checked_device_tool, is_open, own, until

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

PATHS: Final = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
SYSTEM, OTHER = 1000, 2000
"""User IDs; the first one is that of Android's servicemanager."""

_PHONES: Final = f"""\
isolation: strict
sets: {{size: 3}}
container_paths: [{", ".join(PATHS)}]
"""


async def ready(world: World) -> None:
    """With sets of 3, container paths and recreate: on-start, 12 binder devices are 4 phones."""
    await checked_device_tool("create", "--count", "12")
    await world.serve_with(f"{_PHONES}recreate: on-start\n")
    await world.healthy(4)


async def phone(world: World, runtime: str) -> None:
    """A phone has /dev/binder, /dev/hwbinder and /dev/vndbinder; user 1000 becomes context manager of each."""
    container = await world.started(f"phone-{runtime}")
    expected = _managed_by(SYSTEM) | {f"manage /dev/{name}": "EBUSY" for name in own(container)}
    await check(runtime, container, expected, probe=world.probe)
    await world.finish()


async def next_user(world: World, runtime: str) -> None:
    """The next container with the same phone, of another user, becomes context manager: devices are recreated."""
    allocated = []
    for user in (SYSTEM, OTHER):
        container = await world.started(f"user-{user}-{runtime}")
        allocated.append(own(container))
        await check(runtime, container, _managed_by(user), probe=world.probe)
        await world.finish()
    assert allocated[0] == allocated[1], f"other devices: {allocated}"


async def user_namespace(world: World, runtime: str) -> None:
    """In a user namespace a container becomes context manager at all three paths, right after one of another user."""
    container = await world.started(f"mapped-{runtime}")
    expected = {f"manage {path}": "ok" for path in PATHS}
    await check(runtime, container, expected, probe=world.probe, first_host_id=HOST_ID)
    await world.finish()


async def no_flap(world: World) -> None:
    """Recreation is invisible to the kubelet: all devices stay Healthy, and no temporary device is left."""
    view = world.kubelet.resource(RESOURCE)
    assert (view.allocatable, view.capacity) == (4, 4), f"{view.allocatable} {view.capacity}"
    assert world.logged().count("devices changed") == 1, world.logged()[-400:]
    assert sorted(binderfs.device_names(BINDERFS)) == sorted(f"aosp_binder{number}" for number in range(12))


async def leaked(world: World) -> None:
    """A leftover process of the first container cannot reach the second one: its context has no manager (ESRCH)."""
    await _leaked(world, "ESRCH")


async def never(world: World) -> None:
    """Counter-example: without recreate the leftover process reaches the second container's context manager."""
    await world.serve_with(_PHONES)
    await world.healthy(4)
    await _leaked(world, "ok")


async def another_user(world: World, runtime: str) -> None:
    """Counter-example: without recreate the next container's user fails with EPERM on each device."""
    for user, outcome in ((SYSTEM, "ok"), (OTHER, "EPERM")):
        container = await world.started(f"remembered-{user}-{runtime}")
        expected = {f"become {user}": "ok"} | {f"manage {path}": outcome for path in PATHS}
        if user == SYSTEM:
            _recreate(own(container))
            await world.healthy(4)
        await check(runtime, container, expected, probe=world.probe)
        await world.finish()


async def full(world: World) -> None:
    """A device that cannot be recreated, because max= is reached, is Unhealthy, and its container does not start."""
    await world.serve_with(f"{_PHONES}recreate: on-start\n")
    await world.healthy(4)
    binderfs_mounts.limit(BINDERFS, 12)
    refusal = await _refusal(world)
    assert "aosp_binder0" in refusal, refusal
    assert "max=" in refusal, refusal
    await world.healthy(3, unhealthy=1)
    await world.finish()


async def whole_again(world: World) -> None:
    """With a larger max= the plugin recreates the device, which is Healthy again."""
    binderfs_mounts.limit(BINDERFS, 64)
    await world.reload()
    await world.healthy(4)
    await checked_device_tool("delete")


async def _leaked(world: World, outcome: str) -> None:
    """Keep a process of one container running, and check whether it reaches the next container."""
    first = await world.started("first")
    stays = {"keep /dev/binder": "ok", "manage /dev/hwbinder": "ok", "await /go": "ok"}
    stays |= {"call-kept": outcome, "call /dev/binder": outcome}
    leaving = await start("runc", first, stays, probe=world.probe)
    await until(lambda: is_open(f"{BINDERFS}/{own(first)[1]}"), "the first container runs")
    await world.finish()
    second = await world.started("second")
    assert own(first) == own(second), f"{own(first)} {own(second)}"
    managing = {"manage /dev/binder": "ok", "manage /dev/vndbinder": "ok", "await /go": "ok"}
    staying = await start("runc", second, managing, probe=world.probe)
    await until(lambda: is_open(f"{BINDERFS}/{own(second)[2]}"), "the second container runs")
    leaving.release()
    await leaving.end()
    staying.release()
    await staying.end()
    await world.finish()


async def _refusal(world: World) -> str:
    try:
        await world.started("refused")
    except AdmissionError as error:
        return str(error)
    raise AssertionError("the container was not refused")


def _managed_by(user: int) -> dict[str, str]:
    return {f"become {user}": "ok"} | {f"manage {path}": "ok" for path in PATHS}


def _recreate(names: list[str]) -> None:
    """Recreate devices, so that no user was context manager of them."""
    for name in names:
        binderfs.remove_device(BINDERFS, name)
        binderfs.add_device(BINDERFS, name)
        os.chmod(f"{BINDERFS}/{name}", 0o666)


ITEMS: Final[list[Item[World]]] = [
    item(ready),
    *for_each_runtime(phone, next_user, user_namespace),
    *(item(no_flap), item(leaked), item(never)),
    *for_each_runtime(another_user),
    *(item(full), item(whole_again)),
]
