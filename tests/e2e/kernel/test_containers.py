"""What a container can do with its own binder devices on a real binderfs, and with those of other containers.

The path is that of a cluster: the stand-in kubelet calls the plugin's Allocate, ``tests/e2e/common/oci.py`` writes the
runtime spec as containerd does, and a process runs in a container of a real runtime.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import pytest

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel.containers import HOLDING, HOST_ID, check, start
from tests.e2e.kernel.operations import (
    SHARED,
    control_closed,
    fixed,
    forged_closed,
    inodes,
    mknod,
    others_closed,
    own_binderfs_closed,
    strictly_closed,
    usable,
)
from tests.e2e.kernel.world import World, checked_device_tool, own

COUNT: Final = 100
FRESH: Final = 20
SPARE: Final = 20
"""The number of new devices, which together reuse any minor number that was free shortly before."""


@pytest.fixture(scope="module", autouse=True)
async def plugin(shared_world: World) -> AsyncIterator[None]:
    """Serve devices of a binderfs with the default configuration. At the end, hack/binder_devices.py deletes all."""
    await checked_device_tool("create", "--count", str(COUNT))
    await shared_world.serve()
    yield
    await shared_world.stop()
    await checked_device_tool("delete")
    assert not os.path.ismount(BINDERFS), "still mounted"


@pytest.fixture
def world(shared_world: World) -> World:
    """Return the world, whose pods stay: each test has devices of which no user was context manager."""
    return shared_world


@pytest.mark.core
async def test_ready(world: World) -> None:
    """The plugin with its default configuration advertises 100 binder devices."""
    await world.healthy(COUNT)


@pytest.mark.core
async def test_own_devices(world: World, runtime: str, bits: str) -> None:
    """A container can open its three binder devices; each reports protocol version 8 and accepts a context manager."""
    container = await world.admit(f"own-{runtime}", 3)
    await check(runtime, container, usable(own(container)), bits=bits)


@pytest.mark.core
async def test_others_devices(world: World, runtime: str, bits: str) -> None:
    """A container cannot open another container's device (EPERM), nor change it or create files beside it (EROFS)."""
    container, neighbour = await world.admit(f"thief-{runtime}", 1), await _neighbour(world, f"victim-{runtime}")
    before = inodes()
    await check(runtime, container, others_closed(own(container)[0], neighbour), bits=bits)
    assert inodes() == before, "the host's devices have changed"


@pytest.mark.core
async def test_forged(world: World, runtime: str) -> None:
    """A copy of another container's device, created by mknod, does not open (EPERM), although mknod is allowed."""
    container, neighbour = await world.admit(f"forger-{runtime}", 1), await _neighbour(world, f"original-{runtime}")
    await check(runtime, container, forged_closed(neighbour))


@pytest.mark.core
async def test_control(world: World, runtime: str) -> None:
    """A container cannot open binder-control (EPERM), and so creates no device; nor can it mount a binderfs."""
    container = await world.admit(f"maker-{runtime}", 1)
    before = inodes()
    await check(runtime, container, control_closed())
    assert inodes() == before, "the host's devices have changed"


async def test_own_fixed(world: World, runtime: str) -> None:
    """A container cannot change mode or owner of its own device (EROFS), nor delete it; the next container gets it."""
    container = await world.admit(f"vandal-{runtime}", 1)
    before = inodes()
    await check(runtime, container, fixed(own(container)[0]))
    assert inodes() == before, "the host's devices have changed"


async def test_changed(world: World, runtime: str) -> None:
    """Counter-example: with a writable mount, a container can lock out the next container's user (EACCES)."""
    container = await world.admit(f"changer-{runtime}", 1)
    name = own(container)[0]
    mounts = tuple(replace(mount, read_only=False) for mount in container.mounts)
    await check(runtime, replace(container, mounts=mounts), {f"chmod /dev/{name}": "ok"})
    await check(runtime, container, {"become 1000": "ok", f"open /dev/{name}": "EACCES"})
    os.chmod(f"{BINDERFS}/{name}", 0o666)


async def test_own_binderfs(world: World, runtime: str) -> None:
    """A container can mount a binderfs in a user namespace of its own, but not open its binder-control (EPERM)."""
    container = await world.admit(f"mounter-{runtime}", 1)
    await check(runtime, container, own_binderfs_closed())


async def test_own_number(world: World, runtime: str) -> None:
    """The minor number of a deleted device is not reused while its container runs, so it opens no other device."""
    container = await world.admit(f"keeper-{runtime}", 1)
    name = own(container)[0]
    number = os.stat(f"{BINDERFS}/{name}").st_rdev
    running = await start(runtime, container, HOLDING | own_binderfs_closed())
    await running.is_up()
    binderfs.remove_device(BINDERFS, name)
    assert number not in _numbers_of_new_devices(), "another device has the number that the container may open"
    await running.end()
    assert number in _numbers_of_new_devices(), "the number is not free, though the container has ended"
    binderfs.add_device(BINDERFS, name)
    os.chmod(f"{BINDERFS}/{name}", 0o666)


@pytest.mark.core
async def test_user_namespace(world: World) -> None:
    """In a user namespace a container can use its own devices, but open neither others' nor binder-control."""
    container, neighbour = await world.admit("mapped", 3), await _neighbour(world, "other")
    expected = {
        **usable(own(container)),
        f"open {SHARED}/{neighbour}": "EPERM",
        f"unlink {SHARED}/{neighbour}": "EROFS",
        f"open {SHARED}/binder-control": "EACCES",
        mknod("/dev/copy", f"{BINDERFS}/{neighbour}"): "EPERM",
    }
    await check("runc", container, expected, first_host_id=HOST_ID)


async def test_user_namespace_copies(world: World) -> None:
    """In a user namespace /dev/<name> is a copy, which does not open (ENXIO); the devices below /dev/binderfs do."""
    container, neighbour = await world.admit("mapped", 3), await _neighbour(world, "other")
    expected = {
        **usable(own(container), SHARED),
        **{f"open /dev/{name}": "ENXIO" for name in own(container)},
        f"open {SHARED}/{neighbour}": "EPERM",
        f"unlink {SHARED}/{neighbour}": "EROFS",
        f"open {SHARED}/binder-control": "EACCES",
    }
    await check("crun", container, expected, first_host_id=HOST_ID)


@pytest.mark.core
async def test_device_alone(world: World, runtime: str) -> None:
    """Counter-example: with the device entry alone, as generic plugins allocate it, no device opens (ENXIO)."""
    container = await world.admit(f"device-{runtime}", 2)
    expected = {f"open /dev/{name}": "ENXIO" for name in own(container)}
    await check(runtime, replace(container, mounts=()), expected)


@pytest.mark.core
async def test_mount_alone(world: World, runtime: str) -> None:
    """Counter-example: with the mount alone, no device opens (EPERM)."""
    container = await world.admit(f"mount-{runtime}", 2)
    expected = {f"open {where}/{name}": "EPERM" for name in own(container) for where in ("/dev", SHARED)}
    await check(runtime, replace(container, devices=()), expected)


async def test_writable(world: World, runtime: str) -> None:
    """Counter-example: with a writable /dev/binderfs, a container can rename and delete another one's device."""
    container, neighbour = await world.admit(f"writer-{runtime}", 1), await _neighbour(world, f"lost-{runtime}")
    mounts = tuple(replace(mount, read_only=False) for mount in container.mounts)
    expected = {
        f"open {SHARED}/{neighbour}": "EPERM",
        f"rename {SHARED}/{neighbour} {SHARED}/stolen": "ok",
        f"unlink {SHARED}/stolen": "ok",
    }
    await check(runtime, replace(container, mounts=mounts), expected)
    assert neighbour not in binderfs.device_names(BINDERFS)


@pytest.fixture(scope="module")
async def strict_plugin(shared_world: World) -> AsyncIterator[None]:
    """Serve a fresh pool of devices with --isolation strict."""
    await checked_device_tool("create", "--count", str(FRESH), "--prefix", "fresh_binder")
    await shared_world.serve("--isolation", "strict", "--device-prefix", "fresh_binder")
    yield
    await shared_world.stop()
    await checked_device_tool("delete", "--prefix", "fresh_binder")


@pytest.mark.usefixtures("strict_plugin")
async def test_strict(world: World) -> None:
    """With --isolation strict the plugin advertises a fresh pool of binder devices."""
    await world.healthy(FRESH)


@pytest.mark.usefixtures("strict_plugin")
async def test_strict_devices(world: World, runtime: str) -> None:
    """With isolation strict a container can use its own devices, and no directory lists those of others."""
    container, neighbour = await world.admit(f"alone-{runtime}", 3), await _neighbour(world, f"unseen-{runtime}")
    expected = {**usable(own(container)), **strictly_closed(neighbour)}
    await check(runtime, container, expected)


@pytest.mark.usefixtures("strict_plugin")
async def test_strict_fixed(world: World, runtime: str) -> None:
    """With isolation strict a container cannot change its own device (EROFS) or use a binderfs of its own either."""
    container = await world.admit(f"vandal-alone-{runtime}", 1)
    await check(runtime, container, fixed(own(container)[0]) | own_binderfs_closed())


@pytest.mark.usefixtures("strict_plugin")
async def test_strict_user_namespace(world: World) -> None:
    """With isolation strict a container in a user namespace can use its own devices."""
    container = await world.admit("mapped-alone", 3)
    expected = {**usable(own(container)), f"see {SHARED}": "ENOENT"}
    await check("runc", container, expected, first_host_id=HOST_ID)


async def _neighbour(world: World, name: str) -> str:
    """Return the device of another container."""
    return own(await world.admit(name, 1))[0]


def _numbers_of_new_devices() -> set[int]:
    """Create some devices, which get the lowest free minor numbers, and delete them again. Return their numbers."""
    names = [f"spare{number}" for number in range(SPARE)]
    for name in names:
        binderfs.add_device(BINDERFS, name)
    numbers = {os.stat(f"{BINDERFS}/{name}").st_rdev for name in names}
    for name in names:
        binderfs.remove_device(BINDERFS, name)
    return numbers
