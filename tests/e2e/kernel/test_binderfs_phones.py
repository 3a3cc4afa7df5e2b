"""``phones: {count: N}``, a binderfs for each phone, and what the tenants of a phone share: nothing."""

import asyncio
from typing import Final

import pytest

from kubelet_standin import ContainerAllocation
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import HOLDING, HOST_ID, Running, check, start
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import COUNT, DIRECTORY, LISTED, NAMES, RESOURCE, path, phone_of
from tests.e2e.kernel.world import World

pytestmark = pytest.mark.usefixtures("four_phones")

MANY: Final = 120
TENANTS: Final = 100
SYSTEM: Final = 1000
"""The user ID of Android's servicemanager."""

_LEAK: Final = 20
"""File descriptors beyond those of a plugin that serves; a leak of one for each container exceeds it."""
_AT_A_TIME: Final = 4
"""The number of containers that start at the same time, because each needs the CPU."""


@pytest.mark.core
async def test_unprepared(world: World) -> None:
    """On an unprepared host, `phones: {count: 4}` mounts 4 binderfs with three devices of mode 0666: all are listed."""
    assert list(world.kubelet.resource(RESOURCE).devices) == phones.phones(COUNT)


@pytest.mark.core
async def test_whole(world: World, runtime: str, bits: str) -> None:
    """A container has its phone at Android's paths and in /dev/binderfs, is manager of each, and lists no other one."""
    container = await world.started(f"whole-{runtime}")
    phone = phone_of(container)
    await check(runtime, container, phones.whole(phone) | phones.sealed(), bits=bits)


@pytest.mark.core
async def test_user_namespace(world: World, runtime: str) -> None:
    """The same in a user namespace, right after a tenant of another user."""
    container = await world.started(f"mapped-{runtime}")
    expected = phones.whole(phone_of(container)) | phones.sealed()
    if runtime == "crun":
        # crun creates a copy there, which never opens.
        expected |= {f"manage {path(phone_of(container), name)}": "ENXIO" for name in NAMES}
    await check(runtime, container, expected, first_host_id=HOST_ID)


async def test_tenants(world: World) -> None:
    """100 containers, each of another user, have the same phone in turn; each is manager at all three paths."""
    seen, opened = set(), world.open_files()
    others = {phone: device for phone, device in phones.mounted().items() if phone != "phone0"}
    for number in range(TENANTS):
        container = await world.started(f"tenant-{number}")
        seen.add(phone_of(container))
        await check("crun", container, phones.managed_by(SYSTEM + number))
        await world.finish()
    assert seen == {"phone0"}, f"other phones: {seen}"
    assert world.open_files() - opened < _LEAK, f"the plugin has {world.open_files()} open files, before: {opened}"
    after = phones.mounted()
    assert after.keys() == {*phones.phones(COUNT)}, f"mounted: {after}"
    assert {phone: after[phone] for phone in others} == others, "other phones were mounted again"


@pytest.mark.core
async def test_leftover(world: World) -> None:
    """A process of the previous tenant is alone in the old binderfs, which it lists, and reaches no manager (ESRCH)."""
    first = await world.started("leaving")
    phone = phone_of(first)
    expected = {"keep /dev/binder": "ok", "manage /dev/hwbinder": "ok", **HOLDING}
    expected |= {"call-kept": "ESRCH", "call /dev/binder": "ESRCH", f"call {SHARED}/binder": "ESRCH"}
    expected |= {f"list {SHARED}": LISTED, "manage /dev/vndbinder": "ok"}
    leaving = await start("runc", first, expected)
    await leaving.is_up()
    await world.finish()
    second = await world.started("staying")
    assert phone_of(second) == phone
    staying = await start("runc", second, {**phones.MANAGED, **HOLDING})
    await staying.is_up()
    await leaving.end()
    await staying.end()


@pytest.mark.core
async def test_no_flap(world: World) -> None:
    """After all of them, the kubelet has still the plugin's first list: a fresh binderfs is no change of health."""
    view = world.kubelet.resource(RESOURCE)
    assert (view.allocatable, view.capacity, view.messages) == (COUNT, COUNT, 1)
    changes = [line for line in world.logged().splitlines() if "devices changed" in line]
    assert all('unhealthy=""' in line for line in changes), changes


async def test_many(world: World) -> None:
    """With `phones: {count: 120}`, 120 containers run at once: each is manager of its phone, and lists no other."""
    await world.serve_with(f"phones: {{count: {MANY}}}\n", resource=RESOURCE)
    await world.healthy(MANY)
    messages = world.kubelet.resource(RESOURCE).messages
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def run(container: ContainerAllocation) -> Running:
        expected = {f"list {DIRECTORY}": phone_of(container), f"list {SHARED}": LISTED, **phones.MANAGED, **HOLDING}
        async with gate:
            started = await start("crun", container, expected | {f"manage {SHARED}/binder": "EBUSY"})
            await started.is_up()
            return started

    opened = world.open_files()
    containers = [await world.started(f"one-of-many-{number}") for number in range(MANY)]
    mounted = phones.mounted()
    running = await asyncio.gather(*map(run, containers))
    assert {phone_of(container) for container in containers} == {*phones.phones(MANY)}
    assert all(container.process.returncode is None for container in running), "a manager has ended"
    # Each is the manager of the phone that the host has: none was mounted again meanwhile.
    assert phones.mounted() == mounted
    assert world.open_files() - opened < _LEAK, f"the plugin has {world.open_files()} open files, before: {opened}"
    await asyncio.gather(*(container.end() for container in running))
    phones.require_whole(phones.phones(MANY))
    view = world.kubelet.resource(RESOURCE)
    assert (view.allocatable, view.messages) == (MANY, messages)
