"""The faults. To add a fault, add a decorated function: it happens at once, or mends itself within a second."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

from aosp_plugin.framework.apiserver import protocol
from kubelet_standin.apiserver import Cut, Garbage, Hang, RawBytes, Refuse, Slow, Throttle
from tests.chaos.claims.world import DRIVER, NODE, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubelet_standin.apiserver.faults import Fault as Answer

FAULTS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {}
SOON: Final = 0.4
"""Seconds for which a fault that mends itself lasts, at most."""
REPAIRED: Final = 3.0
"""Seconds within which a running driver has written again what was lost."""


def fault(function: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    """Register a fault under the name of its function."""
    FAULTS[function.__name__.replace("_", "-")] = function
    return function


async def _pause(world: World) -> None:
    await asyncio.sleep(world.rng.uniform(0, SOON))


# -- the driver


@fault
async def driver_killed(world: World) -> None:
    """SIGKILL at any moment, also during a Prepare; another process starts."""
    await _pause(world)
    await world.end_driver(kill=True)
    await world.start_driver()


@fault
async def driver_terminated(world: World) -> None:
    """SIGTERM; another process starts later."""
    await world.end_driver(kill=False)
    await _pause(world)
    await world.start_driver()


# -- the kubelet


@fault
async def kubelet_restarts(world: World) -> None:
    """It deletes the ResourceSlices of the node."""
    await world.kubelet.restart()


@fault
async def kubelet_is_away(world: World) -> None:
    """It starts again a moment later."""
    await world.kubelet.stop()
    await _pause(world)
    await world.kubelet.start()


@fault
async def kubelet_misses_sockets(world: World) -> None:
    """The socket of a new process is not noticed until the driver shows another one."""
    world.kubelet.faults.miss_sockets = True
    await world.end_driver(kill=True)
    await world.start_driver()
    await _pause(world)
    world.kubelet.faults.miss_sockets = False
    await world.kubelet.restart()


@fault
async def kubelet_refuses(world: World) -> None:
    """It refuses the driver once."""
    world.kubelet.faults.refuse = "validation failed"
    await world.kubelet.restart()
    await _pause(world)
    world.kubelet.faults.refuse = None


@fault
async def socket_removed(world: World) -> None:
    """The driver's socket is deleted."""
    for socket in (world.directory / "plugins_registry").glob("*.sock"):
        socket.unlink(missing_ok=True)


# -- the API server


@fault
async def api_server_restarts(world: World) -> None:
    """All connections break."""
    await world.server.stop()
    await _pause(world)
    await world.server.start()


@fault
async def connections_break(world: World) -> None:
    """Those of watches, too."""
    world.server.drop_connections()


@fault
async def watches_end(world: World) -> None:
    """As at their time limit."""
    world.server.end_watches()


@fault
async def history_compacted(world: World) -> None:
    """A watch that is resumed gets 410."""
    world.server.compact()
    world.server.end_watches()


@fault
async def watches_are_silent(world: World) -> None:
    """No event arrives for a moment."""
    world.server.faults.silence_watches()
    await _pause(world)
    world.server.faults.silence_watches(silent=False)


async def _answers(world: World, answer: Answer) -> None:
    active = world.server.faults.add(answer, times=world.rng.randint(1, 4))
    world.server.end_watches()
    await _pause(world)
    active.remove()


@fault
async def api_server_throttles(world: World) -> None:
    """429 with Retry-After."""
    await _answers(world, Throttle(retry_after=1.0))


@fault
async def api_server_refuses(world: World) -> None:
    """503."""
    await _answers(world, Refuse())


@fault
async def token_rejected(world: World) -> None:
    """401."""
    await _answers(world, Refuse(401, "Unauthorized", "Unauthorized"))


@fault
async def right_missing(world: World) -> None:
    """403."""
    await _answers(world, Refuse(403, "Forbidden", "forbidden"))


@fault
async def answers_are_garbage(world: World) -> None:
    """Another program answers."""
    garbage: list[Answer] = [Garbage(), RawBytes(), Garbage(b"{}")]
    await _answers(world, world.rng.choice(garbage))


@fault
async def answers_break_off(world: World) -> None:
    """The request may have been processed."""
    await _answers(world, Cut(world.rng.choice([None, 0.0, 0.5, 0.99])))


@fault
async def answers_are_late(world: World) -> None:
    """Slow, or not before the fault ends."""
    late: list[Answer] = [Slow(0.3), Hang()]
    await _answers(world, world.rng.choice(late))


# -- ResourceSlices and Node


@fault
async def slices_deleted(world: World) -> None:
    """Another client deletes them."""
    world.server.objects.delete_collection(protocol.RESOURCE_SLICES)


@fault
async def slice_changed(world: World) -> None:
    """Another client removes the devices of a slice."""
    for each in world.server.objects.list(protocol.RESOURCE_SLICES):
        changed = {**each, "spec": {**each["spec"], "devices": []}}
        world.server.objects.update(protocol.object_path(protocol.RESOURCE_SLICES, each["metadata"]["name"]), changed)


@fault
async def node_recreated(world: World) -> None:
    """The Node object is deleted, its slices are collected, and the kubelet creates it again."""
    world.server.objects.delete(protocol.object_path(protocol.NODES, NODE))
    world.server.objects.collect_garbage()
    await _pause(world)
    world.server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})


# -- files of the driver


@fault
async def specs_deleted(world: World) -> None:
    """All CDI specs. They are the driver's records: only a process that has read them can write them again."""
    await world.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
    for path in world.specs.values():
        path.unlink(missing_ok=True)
    await asyncio.sleep(REPAIRED)


@fault
async def spec_replaced(world: World) -> None:
    """A CDI spec is replaced by something else; as above."""
    await world.kubelet.wait_for(lambda kubelet: kubelet.connected(DRIVER))
    if specs := sorted(world.specs.values()):
        damaged = world.directory / "damaged"
        damaged.write_text("{")
        damaged.rename(world.rng.choice(specs))
    await asyncio.sleep(REPAIRED)


@fault
async def state_deleted_while_away(world: World) -> None:
    """The directory with the lock is lost while no process runs."""
    await world.end_driver(kill=True)
    shutil.rmtree(world.state, ignore_errors=True)
    await world.start_driver()


# -- devices and pods


@fault
async def devices_disappear(world: World) -> None:
    """They come back with the next fault of this kind, or at the end of the step."""
    for device in world.rng.sample(sorted(world.devices), 3):
        world.remove_device(device)
    await _pause(world)
    for device in world.devices:
        world.create_device(device)


@fault
async def pod_deleted_by_force(world: World) -> None:
    """Its claim is deleted while it is prepared, and its device is given to another pod."""
    if world.pods and world.server.running:
        world.delete_by_force(world.rng.choice(sorted(world.pods)))
        world.schedule_pod()
