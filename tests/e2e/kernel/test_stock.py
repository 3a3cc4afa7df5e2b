"""On a kernel without binderfs: Debian's own binder_linux module, inserted with ``devices=``."""

import os
from typing import Final

import pytest

from tests.e2e.common.device_tool import COMMAND
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.operations import mknod, usable
from tests.e2e.kernel.world import RESOURCE, World, own, run, until

COUNT: Final = 12
NAMES: Final = [f"aosp_binder{number}" for number in range(COUNT)]
"""Those with which the boot inserts the module."""

_FOREIGN: Final = ("/dev/aosp_binder90", os.makedev(10, 232)), ("/dev/aosp_fuse", os.makedev(10, 229))
"""A device with KVM's number and the prefix, and one with FUSE's number for a link with the prefix."""
_LINK: Final = "/dev/aosp_binder91"


@pytest.fixture(scope="module")
async def probed(shared_world: World) -> None:
    """Serve the devices with --verify probe."""
    await shared_world.serve("--verify", "probe")
    await shared_world.healthy(COUNT)


@pytest.mark.usefixtures("probed")
async def test_advertised(world: World) -> None:
    """With --verify probe the plugin advertises the 12 devices of devices=, by number: the driver answers for each."""
    assert list(world.kubelet.resource(RESOURCE).devices) == NAMES


@pytest.mark.usefixtures("probed")
async def test_restricted(world: World) -> None:
    """The driver gives its devices mode 0600: they are healthy, and logged until all users may open them."""
    assert "not all users may open binder devices" in world.logged(), world.logged()
    for name in NAMES:
        os.chmod(f"/dev/{name}", 0o666)
    await until(lambda: "all users may open binder devices again" in world.logged(), "the end is logged")


@pytest.mark.usefixtures("probed")
async def test_allocated(world: World) -> None:
    """A container gets device entries without mounts, because the devices are of the kind cdev."""
    container = await world.admit("two", 2)
    paths = [f"/dev/{name}" for name in own(container)]
    assert [(device.container_path, device.host_path, device.permissions) for device in container.devices] == [
        (path, path, "rw") for path in paths
    ]
    assert container.mounts == ()


@pytest.mark.usefixtures("probed")
async def test_own_devices(world: World, runtime: str) -> None:
    """A container can use its device; another one's device is invisible, and a copy of it does not open (EPERM)."""
    container, neighbour = await world.admit(f"own-{runtime}", 1), await world.admit(f"other-{runtime}", 1)
    theirs = own(neighbour)[0]
    expected = {
        **usable(own(container)),
        f"see /dev/{theirs}": "ENOENT",
        mknod("/dev/copy", f"/dev/{theirs}"): "ok",
        "open /dev/copy": "EPERM",
    }
    await check(runtime, container, expected)


async def test_foreign(world: World) -> None:
    """With --verify binder another driver's device with the prefix (KVM's, a link to FUSE's) is not-binder."""
    for path, number in _FOREIGN:
        os.mknod(path, 0o20666, number)
    os.symlink(_FOREIGN[1][0], _LINK)
    await world.serve("--verify", "binder")
    await world.healthy(COUNT, unhealthy=2)
    assert "not-binder:2" in world.logged(), world.logged()
    for path in (_FOREIGN[0][0], _FOREIGN[1][0], _LINK):
        os.unlink(path)


async def test_no_binderfs() -> None:
    """binder_devices.py reports a kernel without binderfs and creates nothing; with --stand-ins, null devices."""
    done = await run(*COMMAND, "create", "--count", "2", "--prefix", "test")
    assert (done.code, done.out) == (1, ""), done
    assert "this kernel has no binderfs: its driver is loaded, and was built without" in done.err, done
    assert not [name for name in os.listdir("/dev") if name.startswith("test")]
    done = await run(*COMMAND, "create", "--count", "2", "--prefix", "test", "--stand-ins")
    assert done == (0, "/dev: 2 created, 0 already present (null devices, not binder)\n", ""), done
    done = await run(*COMMAND, "delete", "--prefix", "test")
    assert done == (0, "/dev: 2 deleted\n", ""), done


async def test_no_phones(world: World) -> None:
    """For phones, the plugin reports in one line that this kernel has no binderfs, and creates nothing."""
    await world.serve_with("phones: {count: 4}\n", resource=phones.RESOURCE)
    await until(lambda: "this kernel has no binderfs: its driver is loaded" in world.logged(), "the reason is logged")
    await world.stop()
    assert not phones.mounted(), f"mounted: {phones.mounted()}"
    assert not os.path.exists(phones.path("phone0")), "a directory is left"
