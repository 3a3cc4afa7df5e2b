"""Items: devices of the host besides binder: a slice of its loop devices for each phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aosp_plugin.config.keys import SliceDevices
from tests.e2e.kernel import phones
from tests.e2e.kernel.confinement import PHONE_PROFILE
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.item import Item, for_each_runtime
from tests.e2e.kernel.items_claims import backend, container
from tests.e2e.kernel.world import DIRECTORY, run

if TYPE_CHECKING:
    from kubelet_standin import ContainerAllocation
    from tests.e2e.kernel.world import World

LOOPS: Final = 40
"""The loop devices of a phone, of which the guest has twice as many."""
IMAGES: Final = DIRECTORY / "images"


async def claimed_loops(world: World, runtime: str) -> None:
    """A container with a claim mounts an image on a loop device of its 40; the 40 of its neighbour do not open."""
    IMAGES.mkdir(exist_ok=True)
    made = await run("mke2fs", "-q", "-F", "-t", "ext4", f"{IMAGES}/disk", "1M")
    assert made.code == 0, made
    slices = SliceDevices(path="/dev/loop*", count=LOOPS)
    started = backend(slice_devices=(slices,), shared_mounts=(str(IMAGES),))
    await _check_loops(runtime, container(started, "phone1"), world)
    started.unprepare(["phone1"])


async def loops(world: World, runtime: str) -> None:
    """The same without claims; phones for which the host has no loop devices are unhealthy."""
    keys = f"slice_devices: [{{path: /dev/loop*, count: {LOOPS}}}]\nshared_mounts: [{IMAGES}]\n"
    await world.serve_with(f"phones: {{count: 4}}\n{keys}", resource=phones.RESOURCE)
    await world.healthy(2, unhealthy=2)
    await _check_loops(runtime, await world.started(f"disk-{runtime}"), world)
    await world.finish()


async def _check_loops(runtime: str, allocation: ContainerAllocation, world: World) -> None:
    """Check that a container opens its own loop devices and no other ones."""
    own, foreign = {"phone0": (0, LOOPS), "phone1": (LOOPS, 0)}[phones.phone_of(allocation)]
    expected = {"mkdir /disk": "ok", f"attach-image /dev/loop{own} {IMAGES}/disk": "ok"}
    expected |= {f"mount-disk /dev/loop{own} /disk": "ok", "see /disk/lost+found": "ok"}
    expected |= {f"open /dev/loop{own + number}": "ok" for number in range(LOOPS)}
    for number in range(foreign, foreign + LOOPS):
        expected |= {f"see /dev/loop{number}": "ENOENT", f"mknod-block /dev/copy{number} 7 {number}": "ok"}
        expected |= {f"open /dev/copy{number}": "EPERM"}
    await check(runtime, allocation, expected, probe=world.probe, capabilities=phones.ADMIN, profile=PHONE_PROFILE)


ITEMS: Final[list[Item[World]]] = for_each_runtime(claimed_loops, loops)
