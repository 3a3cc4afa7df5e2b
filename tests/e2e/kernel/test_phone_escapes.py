"""What the root user of a container tries to leave its phone, without and with CAP_SYS_ADMIN.

The tables of operations are in ``phones``; docs/security.md has the reasons.
"""

import pytest

from kubelet_standin import ContainerAllocation
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.phones import COUNT, REDROID, phone_of
from tests.e2e.kernel.world import World, until

pytestmark = pytest.mark.usefixtures("four_phones")


@pytest.mark.core
async def test_phone_fixed(world: World, runtime: str) -> None:
    """A container cannot change, remove, remount or unmount a file of its phone (EROFS, EBUSY, EPERM)."""
    container = await world.started(f"fixed-{runtime}")
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.fixed())
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"


@pytest.mark.core
async def test_phone_others(world: World, runtime: str, bits: str) -> None:
    """A container sees no name of another phone, and opens no copy of its devices or of a binder-control (EPERM)."""
    container, neighbour = await _with_neighbour(world, runtime)
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.others_closed(phone_of(container), neighbour), bits=bits)
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"


@pytest.mark.core
async def test_phone_namespaced(world: World, runtime: str) -> None:
    """In a user namespace of its own, a container can mount a binderfs, but neither open one nor uncover its own."""
    container = await world.started(f"namespaced-{runtime}")
    before = phones.inodes(phones.phones(COUNT))
    await check(runtime, container, phones.namespaced())
    assert phones.inodes(phones.phones(COUNT)) == before, "files of the host have changed"


@pytest.mark.core
async def test_phone_administered(world: World, runtime: str) -> None:
    """With redroid's capabilities it can spoil its own phone, but neither add devices nor see other phones."""
    container, neighbour = await _with_neighbour(world, runtime)
    phone = phone_of(container)
    others = [other for other in phones.phones(COUNT) if other != phone]
    before = phones.inodes(others)
    expected = phones.others_closed(phone, neighbour) | phones.administered()
    await check(runtime, container, expected, capabilities=REDROID)
    assert phones.inodes(others) == before, "files of other phones have changed"
    await world.finish_all()
    await _next_tenant(world, runtime, phone)


async def test_phone_frozen(world: World, runtime: str) -> None:
    """If it makes the whole binderfs of its phone read-only, or spoils it otherwise, the next tenant's is fresh."""
    container = await world.started(f"freezer-{runtime}")
    phone = phone_of(container)
    await check(runtime, container, phones.spoiled(), capabilities=REDROID)
    await world.finish()
    await _next_tenant(world, runtime, phone)


async def _with_neighbour(world: World, runtime: str) -> tuple[ContainerAllocation, str]:
    """Return a container's allocation, and the phone of another container."""
    container = await world.started(f"attacker-{runtime}")
    return container, phone_of(await world.started(f"victim-{runtime}"))


async def _next_tenant(world: World, runtime: str, phone: str) -> None:
    """Check that all phones are whole and healthy again, and that a next container gets this one."""
    await until(lambda: phones.is_whole(phone), f"{phone} is whole again")
    await world.healthy(COUNT)
    container = await world.started(f"after-{phone}-{runtime}")
    assert phone_of(container) == phone
    await check(runtime, container, phones.whole(phone) | phones.sealed())
    await world.finish()
