"""Items: attacks of a container on later containers with the same devices, and on the plugin.

They use the devices and the plugin of ``items_containers``, whose items are about containers that run at the same time.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel.containers import check, start
from tests.e2e.kernel.item import Item, for_each_runtime
from tests.e2e.kernel.operations import fixed, inodes, own_binderfs_closed
from tests.e2e.kernel.world import PATIENCE, own

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

SPARE: Final = 20
"""The number of new devices, which together reuse any minor number that was free shortly before."""
PORT: Final = 9478


async def own_fixed(world: World, runtime: str) -> None:
    """A container cannot change mode or owner of its own device (EROFS), nor delete it; the next container gets it."""
    container = await world.admit(f"vandal-{runtime}", 1)
    before = inodes()
    await check(runtime, container, fixed(own(container)[0]), probe=world.probe)
    assert inodes() == before, "the host's devices have changed"


async def changed(world: World, runtime: str) -> None:
    """Counter-example: with a writable mount, a container can lock out the next container's user (EACCES)."""
    container = await world.admit(f"changer-{runtime}", 1)
    name = own(container)[0]
    mounts = tuple(replace(mount, read_only=False) for mount in container.mounts)
    await check(runtime, replace(container, mounts=mounts), {f"chmod /dev/{name}": "ok"}, probe=world.probe)
    await check(runtime, container, {"become 1000": "ok", f"open /dev/{name}": "EACCES"}, probe=world.probe)
    os.chmod(f"{BINDERFS}/{name}", 0o666)


async def own_binderfs(world: World, runtime: str) -> None:
    """A container can mount a binderfs in a user namespace of its own, but not open its binder-control (EPERM)."""
    container = await world.admit(f"mounter-{runtime}", 1)
    await check(runtime, container, own_binderfs_closed(), probe=world.probe)


async def own_number(world: World, runtime: str) -> None:
    """The minor number of a deleted device is not reused while its container runs, so it opens no other device."""
    container = await world.admit(f"keeper-{runtime}", 1)
    name = own(container)[0]
    number = os.stat(f"{BINDERFS}/{name}").st_rdev
    expected = {"create /up": "ok", "await /go": "ok", **own_binderfs_closed()}
    running = await start(runtime, container, expected, probe=world.probe)
    async with asyncio.timeout(PATIENCE):
        while not (running.bundle / "rootfs/up").exists():
            await asyncio.sleep(0.05)
    binderfs.remove_device(BINDERFS, name)
    assert number not in _numbers_of_new_devices(), "another device has the number that the container may open"
    running.release()
    await running.end()
    assert number in _numbers_of_new_devices(), "the number is not free, though the container has ended"
    binderfs.add_device(BINDERFS, name)
    os.chmod(f"{BINDERFS}/{name}", 0o666)


async def port(world: World, runtime: str) -> None:
    """The plugin's port answers on the host's loopback address, but not on the container's (ECONNREFUSED)."""
    _, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.close()
    container = await world.admit(f"reader-{runtime}", 1)
    await check(runtime, container, {f"connect 127.0.0.1 {PORT}": "ECONNREFUSED"}, probe=world.probe)


async def strict_fixed(world: World, runtime: str) -> None:
    """With isolation strict a container cannot change its own device (EROFS) or use a binderfs of its own either."""
    container = await world.admit(f"vandal-alone-{runtime}", 1)
    await check(runtime, container, fixed(own(container)[0]) | own_binderfs_closed(), probe=world.probe)


def _numbers_of_new_devices() -> set[int]:
    """Create some devices, which get the lowest free minor numbers, and delete them again. Return their numbers."""
    names = [f"spare{number}" for number in range(SPARE)]
    for name in names:
        binderfs.add_device(BINDERFS, name)
    numbers = {os.stat(f"{BINDERFS}/{name}").st_rdev for name in names}
    for name in names:
        binderfs.remove_device(BINDERFS, name)
    return numbers


SHARED: Final[list[Item[World]]] = [
    *for_each_runtime(own_fixed, changed, own_binderfs, own_number),
    *for_each_runtime(port, runtimes=["runc"]),
]
STRICT: Final[list[Item[World]]] = for_each_runtime(strict_fixed)
