"""What a plugin does about other plugins of its resource."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.deviceplugin.other_plugins import OtherPlugins
from aosp_plugin.framework.deviceplugin.supervisor import Supervisor
from aosp_plugin.framework.sockets import OtherPlugin
from aosp_plugin.framework.timings import Timings

NUMBER = int(time.time() * 1000) - 1000


def endpoint(number: int) -> str:
    """Return the name of the socket that a plugin created then, in milliseconds after the first one."""
    return f"aosp-x-1-{NUMBER + number}.sock"


class Directory:
    """The supervisor, in a directory with the sockets of other plugins."""

    def __init__(self) -> None:
        """Begin with the plugin registered, and no other one."""
        self.registered_endpoint = endpoint(5)
        self.others: tuple[int, ...] = ()
        self.during_scan: Callable[[], None] = lambda: None
        self.directory_changed = asyncio.Event()
        self.view_due = asyncio.Event()
        self.scans = 0

    async def other_plugins(self) -> tuple[OtherPlugin, ...]:
        """Return the other plugins."""
        found = tuple(OtherPlugin(endpoint(number), NUMBER + number, 0) for number in self.others)
        self.during_scan()
        self.scans += 1
        return found

    async def scanned(self, *others: int) -> None:
        """Wait until the directory with these plugins was scanned."""
        self.others, scans = others, self.scans
        async with asyncio.timeout(10):
            while self.scans <= scans + 1:
                self.directory_changed.set()
                await asyncio.sleep(0.001)


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def plugins(directory: Directory, calls: list[str]) -> OtherPlugins:
    return OtherPlugins(
        cast("Supervisor", directory),
        reregister=lambda _: calls.append("register"),
        override=lambda overridden: calls.append("overridden" if overridden else "current"),
        earlier_ended=lambda: calls.append("publish"),
        timings=Timings(recheck=0.001),
    )


async def test_new_registration_during_a_scan_is_not_overridden(
    directory: Directory, plugins: OtherPlugins, calls: list[str]
) -> None:
    """The scan found a plugin that registered later than the previous registration only."""

    def register() -> None:
        directory.registered_endpoint = endpoint(9)

    directory.during_scan = register
    async with background_task(plugins.run()):
        await directory.scanned(7)
        assert calls == []
        directory.during_scan = lambda: None
        await directory.scanned(7)
        assert (calls, plugins.overridden) == ([], False)
        assert plugins.notice == f"another plugin of this resource runs on this node: {endpoint(7)}"


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        pytest.param([[7], [], []], ["overridden", "current", "register"], id="a later one ends"),
        pytest.param([[3], [3, 7], [3]], ["overridden", "current", "register"], id="beside an earlier one"),
        pytest.param([[3], []], ["publish"], id="an earlier one ends"),
    ],
)
async def test_end_of_another_plugin(
    directory: Directory, plugins: OtherPlugins, calls: list[str], scans: list[list[int]], expected: list[str]
) -> None:
    """After a later one the plugin registers again, after an earlier one it publishes again."""
    async with background_task(plugins.run()):
        for scan in scans:
            await directory.scanned(*scan)
            assert ("has taken over because it registered later" in plugins.notice) is (max(scan, default=0) > 5)
            assert bool(plugins.notice) is (bool(scan) or plugins.overridden)
    assert calls == expected


async def test_plugin_that_registers_again_overrides_the_other_one(
    directory: Directory, plugins: OtherPlugins, calls: list[str]
) -> None:
    """As after a restart of the kubelet. The end of the other one then does not count."""
    async with background_task(plugins.run()):
        await directory.scanned(7)
        directory.registered_endpoint = endpoint(9)
        await directory.scanned(7)
        assert calls == ["overridden", "current"]
        await directory.scanned()
        assert calls == ["overridden", "current", "publish"]
