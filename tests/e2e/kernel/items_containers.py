"""Items: what a container can do with its own binder devices on a real binderfs, and with those of other containers.

The path is that of a cluster: the stand-in kubelet calls the plugin's Allocate, ``tests/e2e/common/oci.py`` writes the
runtime spec as containerd does, and a process runs in a container of a real runtime.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import items_vandals
from tests.e2e.kernel.containers import HOST_ID, check
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.operations import (
    SHARED,
    control_closed,
    forged_closed,
    inodes,
    mknod,
    others_closed,
    strictly_closed,
    usable,
)
from tests.e2e.kernel.world import checked_device_tool, own

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

COUNT: Final = 100
FRESH: Final = 20


async def ready(world: World) -> None:
    """The plugin with its default configuration advertises 100 binder devices."""
    await checked_device_tool("create", "--count", str(COUNT))
    await world.serve()
    await world.healthy(COUNT)


async def own_devices(world: World, runtime: str) -> None:
    """A container can open its three binder devices; each reports protocol version 8 and accepts a context manager."""
    container = await world.admit(f"own-{runtime}", 3)
    await check(runtime, container, usable(own(container)), probe=world.probe)


async def others_devices(world: World, runtime: str) -> None:
    """A container cannot open another container's device (EPERM), nor change it or create files beside it (EROFS)."""
    container, neighbour = await world.admit(f"thief-{runtime}", 1), await _neighbour(world, f"victim-{runtime}")
    before = inodes()
    await check(runtime, container, others_closed(own(container)[0], neighbour), probe=world.probe)
    assert inodes() == before, "the host's devices have changed"


async def forged(world: World, runtime: str) -> None:
    """A copy of another container's device, created by mknod, does not open (EPERM), although mknod is allowed."""
    container, neighbour = await world.admit(f"forger-{runtime}", 1), await _neighbour(world, f"original-{runtime}")
    await check(runtime, container, forged_closed(neighbour), probe=world.probe)


async def control(world: World, runtime: str) -> None:
    """A container cannot open binder-control (EPERM), and so creates no device; nor can it mount a binderfs."""
    container = await world.admit(f"maker-{runtime}", 1)
    before = inodes()
    await check(runtime, container, control_closed(), probe=world.probe)
    assert inodes() == before, "the host's devices have changed"


async def user_namespace(world: World, runtime: str) -> None:
    """In a user namespace a container can use its own devices, but open neither others' nor binder-control."""
    container, neighbour = await world.admit(f"mapped-{runtime}", 3), await _neighbour(world, f"other-{runtime}")
    expected = {
        **usable(own(container)),
        f"open {SHARED}/{neighbour}": "EPERM",
        f"unlink {SHARED}/{neighbour}": "EROFS",
        f"open {SHARED}/binder-control": "EACCES",
        mknod("/dev/copy", f"{BINDERFS}/{neighbour}"): "EPERM",
    }
    await check(runtime, container, expected, probe=world.probe, first_host_id=HOST_ID)


async def user_namespace_copies(world: World, runtime: str) -> None:
    """In a user namespace /dev/<name> is a copy, which does not open (ENXIO); the devices below /dev/binderfs do."""
    container, neighbour = await world.admit(f"mapped-{runtime}", 3), await _neighbour(world, f"other-{runtime}")
    expected = {
        **usable(own(container), SHARED),
        **{f"open /dev/{name}": "ENXIO" for name in own(container)},
        f"open {SHARED}/{neighbour}": "EPERM",
        f"unlink {SHARED}/{neighbour}": "EROFS",
        f"open {SHARED}/binder-control": "EACCES",
    }
    await check(runtime, container, expected, probe=world.probe, first_host_id=HOST_ID)


async def device_alone(world: World, runtime: str) -> None:
    """Counter-example: with the device entry alone, as generic plugins allocate it, no device opens (ENXIO)."""
    container = await world.admit(f"device-{runtime}", 2)
    expected = {f"open /dev/{name}": "ENXIO" for name in own(container)}
    await check(runtime, replace(container, mounts=()), expected, probe=world.probe)


async def mount_alone(world: World, runtime: str) -> None:
    """Counter-example: with the mount alone, no device opens (EPERM)."""
    container = await world.admit(f"mount-{runtime}", 2)
    expected = {f"open {where}/{name}": "EPERM" for name in own(container) for where in ("/dev", SHARED)}
    await check(runtime, replace(container, devices=()), expected, probe=world.probe)


async def writable(world: World, runtime: str) -> None:
    """Counter-example: with a writable /dev/binderfs, a container can rename and delete another one's device."""
    container, neighbour = await world.admit(f"writer-{runtime}", 1), await _neighbour(world, f"lost-{runtime}")
    mounts = tuple(replace(mount, read_only=False) for mount in container.mounts)
    expected = {
        f"open {SHARED}/{neighbour}": "EPERM",
        f"rename {SHARED}/{neighbour} {SHARED}/stolen": "ok",
        f"unlink {SHARED}/stolen": "ok",
    }
    await check(runtime, replace(container, mounts=mounts), expected, probe=world.probe)
    assert neighbour not in binderfs.device_names(BINDERFS)


async def strict(world: World) -> None:
    """With --isolation strict the plugin advertises a fresh pool of binder devices."""
    await checked_device_tool("create", "--count", str(FRESH), "--prefix", "fresh_binder")
    await world.serve("--isolation", "strict", "--device-prefix", "fresh_binder")
    await world.healthy(FRESH)


async def strict_devices(world: World, runtime: str) -> None:
    """With isolation strict a container can use its own devices, and no directory lists those of others."""
    container, neighbour = await world.admit(f"alone-{runtime}", 3), await _neighbour(world, f"unseen-{runtime}")
    expected = {**usable(own(container)), **strictly_closed(neighbour)}
    await check(runtime, container, expected, probe=world.probe)


async def strict_user_namespace(world: World, runtime: str) -> None:
    """With isolation strict a container in a user namespace can use its own devices."""
    container = await world.admit(f"mapped-alone-{runtime}", 3)
    expected = {**usable(own(container)), f"see {SHARED}": "ENOENT"}
    await check(runtime, container, expected, probe=world.probe, first_host_id=HOST_ID)


async def ended(world: World) -> None:
    """The plugin exits with 0, and hack/binder_devices.py deletes all binder devices and the binderfs."""
    await world.stop()
    await checked_device_tool("delete")
    assert not os.path.ismount(BINDERFS), "still mounted"


async def _neighbour(world: World, name: str) -> str:
    """Return the device of another container."""
    return own(await world.admit(name, 1))[0]


ITEMS: Final[list[Item[World]]] = [
    item(ready),
    *for_each_runtime(own_devices, others_devices, forged, control),
    *items_vandals.SHARED,
    *for_each_runtime(user_namespace, runtimes=["runc"]),
    *for_each_runtime(user_namespace_copies, runtimes=["crun"]),
    *for_each_runtime(device_alone, mount_alone, writable),
    item(strict),
    *for_each_runtime(strict_devices),
    *items_vandals.STRICT,
    *for_each_runtime(strict_user_namespace, runtimes=["runc"]),
]
