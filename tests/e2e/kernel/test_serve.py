"""``aosp-plugin serve`` with 10,000 devices of a real binderfs and the stand-in kubelet."""

import os
from collections.abc import AsyncIterator
from typing import Final

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import read_mounts
from tests.e2e.common.device_tool import BINDERFS, COMMAND
from tests.e2e.kernel import binderfs_mounts
from tests.e2e.kernel.world import RESOURCE, World, checked_device_tool, own, run, until

MANY: Final = 10_000
DEVICES: Final = 300
"""The number of devices for tests that cause many scans."""

_EXTRA: Final = f"aosp_binder{MANY}"


class TestMany:
    """10,000 devices."""

    @pytest.fixture(scope="class", autouse=True)
    async def created(self, shared_world: World) -> AsyncIterator[None]:
        """Create them. SIGTERM ends the plugin with exit code 0, and hack/binder_devices.py deletes all of them."""
        await checked_device_tool("create", "--count", str(MANY))
        yield
        await shared_world.stop()
        done = await run(*COMMAND, "delete")
        assert (done.code, done.out) == (0, f"/dev: {MANY} deleted\n"), done

    @pytest.fixture(scope="class")
    async def served(self, shared_world: World) -> None:
        """Serve them."""
        await shared_world.serve()
        await shared_world.healthy(MANY)

    @pytest.mark.usefixtures("served")
    async def test_advertised(self, world: World) -> None:
        """The plugin advertises 10,000 healthy devices, by number."""
        names = list(world.kubelet.resource(RESOURCE).devices)
        assert names == [f"aosp_binder{number}" for number in range(MANY)]

    @pytest.mark.usefixtures("served")
    async def test_allocated(self, world: World) -> None:
        """A container with all 10,000 gets a device entry and a read-only mount for each, and the binderfs."""
        container = await world.admit("everything", MANY)
        paths = {f"/dev/{name}" for name in own(container)}
        assert len(paths) == MANY
        assert {(device.container_path, device.host_path, device.permissions) for device in container.devices} == {
            (path, path, "rw") for path in paths
        }
        assert {(mount.container_path, mount.host_path, mount.read_only) for mount in container.mounts} == {
            *((path, path, True) for path in paths),
            ("/dev/binderfs", BINDERFS, True),
        }

    async def test_probed(self, world: World) -> None:
        """With --verify probe the driver answers for each of the 10,000 devices: all are healthy."""
        await world.serve("--verify", "probe")
        await world.healthy(MANY)
        assert "cannot be probed" not in world.logged()


@pytest.fixture
async def devices(world: World) -> AsyncIterator[None]:
    """Create some devices, and delete them at the end."""
    await checked_device_tool("create", "--count", str(DEVICES))
    yield
    await world.stop()
    await checked_device_tool("delete")


@pytest.mark.usefixtures("devices")
async def test_dead_copy(world: World) -> None:
    """With --verify probe a copy of a device created by mknod, which never opens, is Unhealthy."""
    os.mknod(f"/dev/{_EXTRA}", 0o20666, os.stat(f"{BINDERFS}/aosp_binder0").st_rdev)
    await world.serve("--verify", "probe")
    await world.healthy(DEVICES, unhealthy=1)
    os.unlink(f"/dev/{_EXTRA}")


@pytest.mark.usefixtures("devices")
async def test_replaced(world: World) -> None:
    """A new binderfs with devices of the same names makes all Unhealthy (replaced), and healthy after SIGHUP."""
    await world.serve()
    await world.healthy(DEVICES)
    (mounted,) = (mount for mount in read_mounts() if mount.directory == BINDERFS)
    binderfs.unmount(BINDERFS)
    binderfs_mounts.mount(BINDERFS, mounted.source)
    for number in range(DEVICES):
        binderfs.add_device(BINDERFS, f"aosp_binder{number}")
    await until(lambda: f"replaced:{DEVICES}" in world.logged(), "the reason is logged")
    await world.healthy(0, unhealthy=DEVICES)
    await world.reload()
    await world.healthy(DEVICES)
