"""The links to binder devices in /dev/char, by which systemd, as process 1, finds the devices of a container.

:mod:`tests.e2e.kernel.test_systemd_pods` shows what containers keep or lose with and without them.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import phones, systemd
from tests.e2e.kernel.phones import RESOURCE, phone_of
from tests.e2e.kernel.systemd import LINKS, linked, numbers, numbers_of
from tests.e2e.kernel.world import CONFIGURATION, World, checked, checked_device_tool, until


@pytest.fixture(scope="module", autouse=True)
async def served(shared_world: World) -> None:
    """Serve 4 phones."""
    await until(systemd.is_up, "systemd is up")
    await shared_world.serve_with("phones: {count: 4}\n", resource=RESOURCE)
    await shared_world.healthy(4)


@pytest.fixture(scope="module")
async def no_links(shared_world: World) -> None:
    """Serve them where /dev/char is read-only."""
    await shared_world.stop()
    await checked("mount", "-t", "tmpfs", "-o", "ro", "links", str(LINKS))
    keys = 'listen: 127.0.0.1:9478\npod_resources_socket: ""\nphones: {count: 4}\n'
    await shared_world.serve_with(keys, resource=RESOURCE)
    await shared_world.healthy(4)


async def test_ready() -> None:
    """With systemd as process 1, `serve` links each binder device of 4 phones: /dev/char/MAJOR:MINOR."""
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    await until(lambda: linked() == numbers(phones.phones(4)), "the phones are linked")


async def test_fresh(world: World) -> None:
    """A fresh binderfs has its links when its container starts, and those of the one before it are gone."""
    before = {phone: os.stat(phones.path(phone)).st_ctime_ns for phone in phones.phones(4)}
    phone = phone_of(await world.started("fresh"))
    assert numbers([phone]).items() <= linked().items()
    # Replaced by Allocate and by PreStartContainer, it may have the number of the first one again.
    assert os.stat(phones.path(phone)).st_ctime_ns != before[phone]
    await until(lambda: linked() == numbers(phones.phones(4)), "/dev/char has the links of the phones, and no others")


@pytest.mark.usefixtures("no_links")
async def test_unlinked() -> None:
    """Where /dev/char is read-only, phones are healthy, and `aosp-plugin status --check` says what is missing."""
    url = "http://127.0.0.1:9478"
    printed = await checked(sys.executable, "-m", "aosp_plugin", "status", "--check", "--url", url)
    assert printed.startswith(f"notice: {RESOURCE}: ")
    assert ": 12 binder devices have none (for " in printed


@pytest.mark.usefixtures("no_links")
async def test_commands(world: World) -> None:
    """`aosp-plugin provision` restores links and ends those of phones that are gone; `provision --remove` ends all."""
    await world.stop()
    await checked("umount", str(LINKS))
    phones.unmount_all()
    assert linked(), "no link is left"
    world.configure("phones: {count: 3}\n")
    command = (sys.executable, "-m", "aosp_plugin", "provision", "--config", str(CONFIGURATION))
    for _ in range(2):
        await checked(*command)
        assert linked() == numbers(phones.phones(3))
        next(LINKS.glob("*:*")).unlink()
    await checked(*command, "--remove")
    assert linked() == {}


async def test_found(world: World) -> None:
    """Found devices have links, also after recreation, and none when they are gone."""
    await checked_device_tool("create", "--count", "6")
    await world.serve_with("recreate: on-start\nverify: binder\n")
    await world.healthy(6)
    devices = [f"{BINDERFS}/aosp_binder{number}" for number in range(6)]
    await until(lambda: linked() == numbers_of(devices), "the devices are linked")
    before = [os.stat(device).st_ctime_ns for device in devices]
    await world.started("recreated")
    await until(lambda: linked() == numbers_of(devices), "the fresh device is linked")
    # It may have its number again, which is its inode's: it is recreated by Allocate, and by PreStartContainer.
    assert [os.stat(device).st_ctime_ns for device in devices] != before
    await checked_device_tool("delete")
    await until(lambda: linked() == {}, "no link is left")
