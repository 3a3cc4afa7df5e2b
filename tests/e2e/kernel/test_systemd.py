"""A running container keeps its phone when systemd, which made its cgroup, applies its own device filter.

The guest's process 1 is systemd. :mod:`tests.e2e.kernel.test_systemd_pods` has the same under a real kubelet.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import phones, systemd
from tests.e2e.kernel.containers import HOLDING, Running, start
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import NAMES, RESOURCE, phone_of
from tests.e2e.kernel.systemd import CHANGES, LINKS, LOSING, linked, numbers, numbers_of
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


@pytest.mark.core
async def test_ready() -> None:
    """With systemd as process 1, `serve` links each binder device of 4 phones: /dev/char/MAJOR:MINOR."""
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    await until(lambda: linked() == numbers(phones.phones(4)), "the phones are linked")


@pytest.mark.core
async def test_kept(world: World, runtime: str) -> None:
    """A container keeps its phone through daemon-reload, a change of its CPU shares, and set-property."""
    await _try(world, runtime, "ok", "with links")


async def test_fresh() -> None:
    """Each fresh binderfs had its links before its container started, and those of the one before it are gone."""
    await until(lambda: linked() == numbers(phones.phones(4)), "/dev/char has the links of the phones, and no others")


@pytest.mark.core
@pytest.mark.usefixtures("no_links")
async def test_unlinked() -> None:
    """Where /dev/char is read-only, phones are healthy, and `aosp-plugin status --check` says what is missing."""
    url = "http://127.0.0.1:9478"
    printed = await checked(sys.executable, "-m", "aosp_plugin", "status", "--check", "--url", url)
    assert printed.startswith(f"notice: {RESOURCE}: ")
    assert ": 12 binder devices have none (for " in printed


@pytest.mark.core
@pytest.mark.usefixtures("no_links")
async def test_lost(world: World, runtime: str) -> None:
    """Counter-example: without links, a container of Debian's runc loses its phone, and those of others keep it."""
    await _try(world, runtime, "EPERM" if runtime == LOSING else "ok", "without links")


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


async def _try(world: World, runtime: str, outcome: str, links: str) -> None:
    """Run a container for each change, and check whether its phone opens before and after it."""
    program = systemd.program(runtime)
    version = (await checked(program, "--version")).split()[2]
    for change in CHANGES:
        allocation = await world.started(f"{change}-{version}")
        expected = {**{f"open /dev/{name}": "ok" for name in NAMES}, **HOLDING}
        expected |= {f"open {SHARED}/{name}": outcome for name in NAMES} | {"open /dev/null": "ok"}
        running = await start(program, allocation, expected, systemd=True)
        await running.is_up()
        await checked(*_command(change, running))
        shown = await checked("systemctl", "show", "--property=DevicePolicy,DeviceAllow", running.scope)
        allowed = {f"DeviceAllow=/dev/char/{number} rw" in shown for number in numbers([phone_of(allocation)])}
        filtered = "DevicePolicy=strict" in shown  # not with crun before 1.18
        assert allowed == {filtered and outcome == "ok"}, f"{change}: {shown}"
        await running.end()
        await world.finish()
        sys.stdout.write(f"{runtime} {version}, {change}, {links}: {outcome}\n")


def _command(change: str, running: Running) -> tuple[str, ...]:
    return {
        "daemon-reload": ("systemctl", "daemon-reload"),
        "update": (running.runtime, "update", "--cpu-share", "512", running.bundle.name),
        "set-property": ("systemctl", "set-property", "--runtime", running.scope, "CPUWeight=50"),
    }[change]
