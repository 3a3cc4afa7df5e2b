"""Items: a running container keeps its phone when systemd, which made its cgroup, applies its own device filter.

The guest's process 1 is systemd. :mod:`tests.e2e.kernel.items_systemd_pods` has the same under a real kubelet.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common.device_tool import BINDERFS
from tests.e2e.kernel import phones, systemd
from tests.e2e.kernel.containers import start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.operations import SHARED
from tests.e2e.kernel.phones import DIRECTORY, NAMES, RESOURCE, phone_of
from tests.e2e.kernel.world import CONFIGURATION, checked_device_tool, run, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.kernel.containers import Running
    from tests.e2e.kernel.world import World

LINKS: Final = Path("/dev/char")
DEBIAN_RUNC: Final = "Debian's runc"
PROGRAMS: Final = {DEBIAN_RUNC: "runc", "Debian's crun": "crun", "runc": "", "crun": ""}
"""The runtimes. The paths of the newer ones are set at the start of the guest."""
LOSING: Final = (DEBIAN_RUNC,)
"""The runtimes that leave a device without a link out of the scope: 1.1.5."""
CHANGES: Final = ("daemon-reload", "update", "set-property")
"""What makes systemd apply the filter of a scope."""
_ALL: Final = tuple(PROGRAMS)


async def ready(world: World) -> None:
    """With systemd as process 1, `serve` links each binder device of 4 phones: /dev/char/MAJOR:MINOR."""
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    await until(systemd.is_up, "systemd is up")
    await world.serve_with("phones: {count: 4}\n", resource=RESOURCE)
    await world.healthy(4)
    await until(lambda: linked() == numbers(phones.phones(4)), "the phones are linked")


async def kept(world: World, runtime: str) -> None:
    """A container keeps its phone through daemon-reload, a change of its CPU shares, and set-property."""
    await _try(world, runtime, dict.fromkeys(CHANGES, "ok"), "with links")


async def fresh(world: World) -> None:
    """Each fresh binderfs had its links before its container started, and those of the one before it are gone."""
    await until(lambda: linked() == numbers(phones.phones(4)), "/dev/char has the links of the phones, and no others")


async def unlinked(world: World) -> None:
    """Where /dev/char is read-only, phones are healthy, and `aosp-plugin status --check` says what is missing."""
    await world.stop()
    assert (await run("mount", "-t", "tmpfs", "-o", "ro", "links", str(LINKS))).code == 0
    keys = 'listen: 127.0.0.1:9478\npod_resources_socket: ""\nphones: {count: 4}\n'
    await world.serve_with(keys, resource=RESOURCE)
    await world.healthy(4)
    url = "http://127.0.0.1:9478"
    status = await run(sys.executable, "-m", "aosp_plugin", "status", "--check", "--url", url)
    assert status.code == 0, f"{status}"
    assert status.out.startswith(f"notice: {RESOURCE}: "), f"{status}"
    assert ": 12 binder devices have none (for " in status.out, f"{status}"


async def lost(world: World, runtime: str) -> None:
    """Counter-example: without links, a container of Debian's runc loses its phone, and those of others keep it."""
    outcome = "EPERM" if runtime in LOSING else "ok"
    await _try(world, runtime, dict.fromkeys(CHANGES, outcome), "without links")


async def commands(world: World) -> None:
    """`aosp-plugin provision` restores links and ends those of phones that are gone; `provision --remove` ends all."""
    await world.stop()
    assert (await run("umount", str(LINKS))).code == 0
    phones.unmount_all()
    assert linked(), "no link is left"
    world.configure("phones: {count: 3}\n")
    command = (sys.executable, "-m", "aosp_plugin", "provision", "--config", str(CONFIGURATION))
    for _ in range(2):
        assert (await run(*command)).code == 0
        assert linked() == numbers(phones.phones(3))
        next(LINKS.glob("*:*")).unlink()
    removed = await run(*command, "--remove")
    assert removed.code == 0, f"{removed}"
    assert linked() == {}


async def found(world: World) -> None:
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


def linked() -> dict[str, str]:
    """Return the binder device that each link leads to."""
    found = {path.name: os.readlink(path) for path in LINKS.glob("*")}
    return {name: target for name, target in found.items() if target.startswith("/run/")}


def numbers(ids: Sequence[str]) -> dict[str, str]:
    """Return the paths of the binder devices of phones by their numbers."""
    return numbers_of([f"{DIRECTORY}/{phone}/{name}" for phone in ids for name in NAMES])


def numbers_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths of devices by their numbers."""
    found = {}
    for path in paths:
        status = os.lstat(path)
        assert stat.S_ISCHR(status.st_mode), path
        found[f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"] = path
    return found


async def _try(world: World, runtime: str, outcomes: dict[str, str], links: str) -> None:
    """Run a container for each change, and check whether its phone opens before and after it."""
    program = PROGRAMS[runtime]
    version = (await run(program, "--version")).out.split()[2]
    for change, outcome in outcomes.items():
        allocation = await world.started(f"{change}-{version}")
        expected = {f"open /dev/{name}": "ok" for name in NAMES} | {"create /up": "ok", "await /go": "ok"}
        expected |= {f"open {SHARED}/{name}": outcome for name in NAMES} | {"open /dev/null": "ok"}
        running = await start(program, allocation, expected, probe=world.probe, systemd=True)
        await until(lambda: _is_up(running), f"the container of {runtime} runs")  # noqa: B023
        changed = await run(*_command(change, running))
        assert changed.code == 0, f"{runtime}, {change}: {changed}"
        shown = await run("systemctl", "show", "--property=DevicePolicy,DeviceAllow", running.scope)
        allowed = [f"DeviceAllow=/dev/char/{number} rw" in shown.out for number in numbers([phone_of(allocation)])]
        filtered = "DevicePolicy=strict" in shown.out  # not with crun before 1.18
        assert set(allowed) == {filtered and outcome == "ok"}, f"{runtime}, {change}: {shown}"
        running.release()
        await running.end()
        await world.finish()
        sys.stdout.write(f"{runtime} {version}, {change}, {links}: {outcome}\n")


def _is_up(running: Running) -> bool:
    return (running.bundle / "rootfs/up").exists() or running.process.returncode is not None


def _command(change: str, running: Running) -> tuple[str, ...]:
    return {
        "daemon-reload": ("systemctl", "daemon-reload"),
        "update": (running.runtime, "update", "--cpu-share", "512", running.bundle.name),
        "set-property": ("systemctl", "set-property", "--runtime", running.scope, "CPUWeight=50"),
    }[change]


ITEMS: Final[list[Item[World]]] = [
    item(ready),
    *for_each_runtime(kept, runtimes=_ALL),
    *(item(fresh), item(unlinked)),
    *for_each_runtime(lost, runtimes=_ALL),
    *(item(commands), item(found)),
]

CORE: Final[list[Item[World]]] = [
    item(ready),
    *for_each_runtime(kept, runtimes=LOSING),
    item(unlinked),
    *for_each_runtime(lost, runtimes=LOSING),
]
"""The core set of items, with the runtime that needs links."""
