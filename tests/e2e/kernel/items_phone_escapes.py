"""Items: what the root user of a container tries to leave its phone, without and with CAP_SYS_ADMIN.

The tables of operations are in ``phones``; docs/security.md has the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import items_binderfs_phones, phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.items_binderfs_phones import COUNT
from tests.e2e.kernel.phones import REDROID, phone_of
from tests.e2e.kernel.world import until

if TYPE_CHECKING:
    from kubelet_standin import ContainerAllocation
    from tests.e2e.kernel.world import World


async def phone_fixed(world: World, runtime: str) -> None:
    """A container cannot change, remove, remount or unmount a file of its phone (EROFS, EBUSY, EPERM)."""
    container = await world.started(f"fixed-{runtime}")
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.fixed(), probe=world.probe)
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"
    await world.finish()


async def phone_others(world: World, runtime: str) -> None:
    """A container sees no name of another phone, and opens no copy of its devices or of a binder-control (EPERM)."""
    container, neighbour = await _with_neighbour(world, runtime)
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.others_closed(phone_of(container), neighbour), probe=world.probe)
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"
    await _finish_both(world)


async def phone_namespaced(world: World, runtime: str) -> None:
    """In a user namespace of its own, a container can mount a binderfs, but neither open one nor uncover its own."""
    container = await world.started(f"namespaced-{runtime}")
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.namespaced(), probe=world.probe)
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"
    await world.finish()


async def phone_administered(world: World, runtime: str) -> None:
    """With redroid's capabilities it can spoil its own phone, but neither add devices nor see other phones."""
    container, neighbour = await _with_neighbour(world, runtime)
    phone = phone_of(container)
    others = [other for other in phones.phones(COUNT) if other != phone]
    before = phones.inodes(others)
    expected = phones.others_closed(phone, neighbour) | phones.administered()
    await check(runtime, container, expected, probe=world.probe, capabilities=REDROID)
    assert phones.inodes(others) == before, "files of other phones have changed"
    await _finish_both(world)
    await _next_tenant(world, runtime, phone)


async def phone_frozen(world: World, runtime: str) -> None:
    """If it makes the whole binderfs of its phone read-only, or spoils it otherwise, the next tenant's is fresh."""
    container = await world.started(f"freezer-{runtime}")
    phone = phone_of(container)
    await check(runtime, container, phones.spoiled(), probe=world.probe, capabilities=REDROID)
    await world.finish()
    await _next_tenant(world, runtime, phone)


async def _with_neighbour(world: World, runtime: str) -> tuple[ContainerAllocation, str]:
    """Return a container's allocation, and the phone of another container."""
    container = await world.started(f"attacker-{runtime}")
    return container, phone_of(await world.started(f"victim-{runtime}"))


async def _finish_both(world: World) -> None:
    await world.finish()
    await world.finish()


async def _next_tenant(world: World, runtime: str, phone: str) -> None:
    """Check that all phones are whole and healthy again, and that a next container gets this one."""
    await until(lambda: phones.is_whole(phone), f"{phone} is whole again")
    await world.healthy(COUNT)
    container = await world.started(f"after-{phone}-{runtime}")
    assert phone_of(container) == phone, f"{phone_of(container)}, not {phone}"
    await check(runtime, container, phones.whole(phone) | phones.sealed(), probe=world.probe)
    await world.finish()


ITEMS: Final[list[Item[World]]] = [
    item(items_binderfs_phones.unprepared),
    *for_each_runtime(phone_fixed, phone_others, phone_namespaced, phone_administered, phone_frozen),
    item(items_binderfs_phones.ended),
]
