"""Items: ``phones: {count: N}``, a binderfs for each phone, and what the tenants of a phone share: nothing."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import HOST_ID, check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import DIRECTORY, LISTED, NAMES, RESOURCE, path, phone_of
from tests.e2e.kernel.world import file_id, is_open, open_files, until

if TYPE_CHECKING:
    from kubelet_standin import ContainerAllocation
    from tests.e2e.kernel.containers import Running
    from tests.e2e.kernel.world import World

COUNT: Final = 4
MANY: Final = 120
TENANTS: Final = 100
SYSTEM: Final = 1000
"""The user ID of Android's servicemanager."""

_AT_A_TIME: Final = 4
"""The number of containers that start at the same time, because each needs the CPU."""


async def unprepared(world: World) -> None:
    """On an unprepared host, `phones: {count: 4}` mounts 4 binderfs with three devices of mode 0666: all are listed."""
    assert not os.path.exists(DIRECTORY)
    await world.serve_with(f"phones: {{count: {COUNT}}}\n", resource=RESOURCE)
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))
    assert list(world.kubelet.resource(RESOURCE).devices) == phones.phones(COUNT)


async def whole(world: World, runtime: str) -> None:
    """A container has its phone at Android's paths and in /dev/binderfs, is manager of each, and lists no other one."""
    container = await world.started(f"whole-{runtime}")
    phone = phone_of(container)
    await check(runtime, container, phones.whole(phone) | phones.sealed(), probe=world.probe)
    await world.finish()


async def user_namespace(world: World, runtime: str) -> None:
    """The same in a user namespace, right after a tenant of another user."""
    container = await world.started(f"mapped-{runtime}")
    expected = phones.whole(phone_of(container)) | phones.sealed()
    if runtime == "crun":
        # crun creates a copy there, which never opens.
        expected |= {f"manage {path(phone_of(container), name)}": "ENXIO" for name in NAMES}
    await check(runtime, container, expected, probe=world.probe, first_host_id=HOST_ID)
    await world.finish()


async def tenants(world: World) -> None:
    """100 containers, each of another user, have the same phone in turn; each is manager at all three paths."""
    seen = set()
    others = {phone: device for phone, device in phones.mounted().items() if phone != "phone0"}
    for number in range(TENANTS):
        container = await world.started(f"tenant-{number}")
        seen.add(phone_of(container))
        await check("crun", container, phones.managed_by(SYSTEM + number), probe=world.probe)
        await world.finish()
    assert seen == {"phone0"}, f"other phones: {seen}"
    after = phones.mounted()
    assert after.keys() == {*phones.phones(COUNT)}, f"mounted: {after}"
    assert {phone: after[phone] for phone in others} == others, "other phones were mounted again"


async def no_flap(world: World) -> None:
    """After all of them, the kubelet has still the plugin's first list: a fresh binderfs is no change of health."""
    view = world.kubelet.resource(RESOURCE)
    found = (view.allocatable, view.capacity, view.messages)
    assert found == (COUNT, COUNT, 1), f"{found}"
    changes = [line for line in world.logged().splitlines() if "devices changed" in line]
    assert all('unhealthy=""' in line for line in changes), changes


async def leftover(world: World) -> None:
    """A process of the previous tenant is alone in the old binderfs, which it lists, and reaches no manager (ESRCH)."""
    first = await world.started("leaving")
    phone = phone_of(first)
    expected = {"keep /dev/binder": "ok", "manage /dev/hwbinder": "ok", "await /go": "ok"}
    expected |= {"call-kept": "ESRCH", "call /dev/binder": "ESRCH", f"call {SHARED}/binder": "ESRCH"}
    expected |= {f"list {SHARED}": LISTED, "manage /dev/vndbinder": "ok"}
    leaving = await start("runc", first, expected, probe=world.probe)
    await until(lambda: is_open(path(phone, "hwbinder")), "the first container runs")
    await world.finish()
    second = await world.started("staying")
    assert phone_of(second) == phone
    managing = {f"manage /dev/{name}": "ok" for name in NAMES} | {"await /go": "ok"}
    staying = await start("runc", second, managing, probe=world.probe)
    await until(lambda: is_open(path(phone, "vndbinder")), "the second container runs")
    await _end([leaving, staying])
    await world.finish()


async def many(world: World) -> None:
    """With `phones: {count: 120}`, 120 containers run at once: each is manager of its phone, and lists no other."""
    await world.serve_with(f"phones: {{count: {MANY}}}\n", resource=RESOURCE)
    await world.healthy(MANY)
    messages = world.kubelet.resource(RESOURCE).messages
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def run(container: ContainerAllocation) -> Running:
        expected = {f"list {DIRECTORY}": phone_of(container), f"list {SHARED}": LISTED, **_holding()}
        async with gate:
            return await _started("crun", container, expected | {f"manage {SHARED}/binder": "EBUSY"}, world)

    containers = [await world.started(f"one-of-many-{number}") for number in range(MANY)]
    running = await asyncio.gather(*map(run, containers))
    held = open_files()
    managed = [phone for phone in phones.phones(MANY) if file_id(path(phone, "binder")) in held]
    assert len(managed) == MANY, f"{len(managed)} phones have a manager"
    await _end(running)
    phones.require_whole(phones.phones(MANY))
    view = world.kubelet.resource(RESOURCE)
    assert (view.allocatable, view.messages) == (MANY, messages), f"{view.allocatable}, {view.messages} messages"


async def ended(world: World) -> None:
    """When the plugin ends, all phones stay mounted, and the host can unmount them."""
    wanted = phones.mounted().keys()
    await world.stop()
    assert phones.mounted().keys() == wanted
    phones.unmount_all()


def _holding() -> dict[str, str]:
    """Return the operations that make a container the manager of its phone until it may go on."""
    return {f"manage /dev/{name}": "ok" for name in NAMES} | {"create /up": "ok", "await /go": "ok"}


async def _started(runtime: str, container: ContainerAllocation, expected: dict[str, str], world: World) -> Running:
    """Start a container, and wait until it has created its file /up."""
    running = await start(runtime, container, expected, probe=world.probe)
    up = running.bundle / "rootfs/up"
    await until(lambda: up.exists() or running.process.returncode is not None, f"{container.name} runs")
    return running


async def _end(running: list[Running]) -> None:
    """Let containers go on to their end, and check what they found."""
    for container in running:
        container.release()
    for container in running:
        await container.end()


ITEMS: Final[list[Item[World]]] = [
    item(unprepared),
    *for_each_runtime(whole, user_namespace),
    *(item(tenants), item(leftover), item(no_flap)),
    *(item(many), item(ended)),
]
