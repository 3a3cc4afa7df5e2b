"""``aosp-plugin serve`` with 10,000 nodes of a real binderfs, seen by the stand-in kubelet."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_nodes import MANY
from tests.e2e.kernel.world import BINDERFS, PATIENCE, RESOURCE, make_nodes, nodes, own

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

FEW: Final = 300
"""Nodes for items that have the plugin look again and again."""

_EXTRA: Final = f"aosp_binder{MANY}"


async def advertised(world: World) -> None:
    """serve advertises 10,000 nodes, all healthy, by number."""
    await make_nodes("create", "--count", str(MANY))
    await world.serve()
    await world.healthy(MANY)
    names = list(world.kubelet.resource(RESOURCE).devices)
    assert names == [f"aosp_binder{number}" for number in range(MANY)]


async def allocated(world: World) -> None:
    """A container with all 10,000 gets each as a device and, read-only, as a mount at one path, and the binderfs so."""
    container = await world.admit("everything", MANY)
    wanted = {f"/dev/{name}" for name in own(container)}
    assert len(wanted) == MANY
    assert {(one.container_path, one.host_path, one.permissions) for one in container.devices} == {
        (path, path, "rw") for path in wanted
    }
    assert {(one.container_path, one.host_path, one.read_only) for one in container.mounts} == {
        *((path, path, True) for path in wanted),
        ("/dev/binderfs", BINDERFS, True),
    }


async def hotplug(world: World) -> None:
    """A node made by BINDER_CTL_ADD beside them, and linked from /dev, is advertised; unlinked, it is Unhealthy."""
    binderfs.add_device(BINDERFS, _EXTRA)
    os.symlink(f"{BINDERFS}/{_EXTRA}", f"/dev/{_EXTRA}")
    await world.healthy(MANY + 1)
    binderfs.remove_device(BINDERFS, _EXTRA)
    await world.healthy(MANY, ill=1)
    os.unlink(f"/dev/{_EXTRA}")


async def probed(world: World) -> None:
    """With --verify probe the driver is asked behind each of the 10,000: all are healthy."""
    await world.serve("--verify", "probe")
    await world.healthy(MANY)
    assert "can't be probed" not in world.logged()


async def stopped(world: World) -> None:
    """SIGTERM ends it with exit code 0, and delete removes the nodes though they were handed out."""
    await world.stop()
    done = await nodes("delete")
    assert (done.code, done.out) == (0, f"/dev: {MANY} nodes deleted, 0 things left\n"), done


async def dead_copy(world: World) -> None:
    """A copy of a node made by mknod, which never opens, is Unhealthy with --verify probe."""
    await make_nodes("create", "--count", str(FEW))
    os.mknod(f"/dev/{_EXTRA}", 0o20666, os.stat(f"{BINDERFS}/aosp_binder0").st_rdev)
    await world.serve("--verify", "probe")
    await world.healthy(FEW, ill=1)


async def dead_copy_unprobed(world: World) -> None:
    """The same copy is Unhealthy with --verify binder as well: not-binder."""
    await world.serve("--verify", "binder")
    try:
        await world.healthy(FEW, ill=1)
        await _logged(world, "not-binder:1")
    finally:
        os.unlink(f"/dev/{_EXTRA}")


async def in_the_binderfs(world: World) -> None:
    """With the binderfs itself as --device-dir, BINDER_CTL_ADD and unlink are followed without a link."""
    await world.serve("--device-dir", BINDERFS)
    await world.healthy(FEW)
    binderfs.add_device(BINDERFS, _EXTRA)
    await world.healthy(FEW + 1)
    binderfs.remove_device(BINDERFS, _EXTRA)
    await world.healthy(FEW, ill=1)


async def mounted_over(world: World) -> None:
    """A second binderfs mounted over the first, empty, makes all nodes missing; unmounted, all are healthy again."""
    await world.serve()
    await world.healthy(FEW)
    binderfs.mount(BINDERFS)
    await world.healthy(0, ill=FEW)
    await _logged(world, f"missing:{FEW}")
    binderfs.unmount(BINDERFS)
    await world.healthy(FEW)


async def replaced(world: World) -> None:
    """A binderfs mounted anew, with nodes of the same names, makes all of them Unhealthy, and the log says replaced."""
    binderfs.unmount(BINDERFS)
    binderfs.mount(BINDERFS)
    for number in range(FEW):
        binderfs.add_device(BINDERFS, f"aosp_binder{number}")
    await _logged(world, f"replaced:{FEW}")
    await world.healthy(0, ill=FEW)


async def healed(world: World) -> None:
    """SIGHUP takes the new binderfs for the right one: all nodes are healthy again."""
    await world.reload()
    await world.healthy(FEW)


async def kept(world: World) -> None:
    """delete removes the links, leaves the binderfs that is not the one it mounted, and says so."""
    await world.stop()
    done = await nodes("delete")
    assert done.code == 0, done
    why = "stays mounted: it is not the binderfs that was mounted there for the nodes"
    assert done.err == f"left: {BINDERFS} {why}\n", done
    assert not [name for name in os.listdir("/dev") if "binder" in name]
    binderfs.unmount(BINDERFS)


async def _logged(world: World, text: str) -> None:
    """Wait until the plugin has logged ``text``."""
    try:
        async with asyncio.timeout(PATIENCE):
            while text not in world.logged():
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise AssertionError(f"{text!r} was not logged: …{world.logged()[-400:]}") from error


ITEMS: Final[list[Item[World]]] = [
    item(one)
    for one in (
        *(advertised, allocated, hotplug, probed, stopped, dead_copy, dead_copy_unprobed, in_the_binderfs),
        *(mounted_over, replaced, healed, kept),
    )
]
