"""What systemd is told, over a real socket in its place."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.service.systemd import between_looks, tell, watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OFTEN = 0.001
"""Seconds between two looks here."""


class Systemd:
    """The receiving end."""

    def __init__(self, address: str, name: bytes | str) -> None:
        self.environment = {"NOTIFY_SOCKET": address}
        self._name = name
        self._socket = self._bound()

    def _bound(self) -> socket.socket:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.bind(self._name)
        bound.settimeout(0.0)
        return bound

    async def told(self) -> str:
        """Return what comes next."""
        return (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode()

    def pending(self) -> list[str]:
        """Return what has come."""
        texts = []
        try:
            while True:
                texts.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return texts

    def close(self) -> None:
        """Go away."""
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    path = str(tmp_path / "notify")
    receiver = Systemd(path, path)
    yield receiver
    receiver.close()


class Plugin:
    """What is wrong with a plugin, as a test says."""

    def __init__(self) -> None:
        self.unready = ["not registered yet"]
        self.unhealthy = [""]
        self.stop = asyncio.Event()

    async def tell(self, environment: dict[str, str]) -> None:
        """Have it told."""
        await tell(lambda: self.unready, lambda: self.unhealthy, self.stop, environment, OFTEN)


async def until(systemd: Systemd, wanted: Callable[[str], bool]) -> str:
    """Return the first message that is wanted."""
    while not wanted(text := await systemd.told()):
        pass
    return text


async def test_ready_once_registered(systemd: Systemd) -> None:
    """READY=1 is told when nothing is in the way any more, and not before; until then the status says what is."""
    plugin = Plugin()
    async with background_task(plugin.tell(systemd.environment)):
        assert await systemd.told() == "STATUS=not registered yet"
        plugin.unready = [""]
        assert await systemd.told() == "READY=1\nSTATUS=registered"


async def test_every_resource_has_to_be_registered(systemd: Systemd) -> None:
    """With one of two resources left, the service is not ready; the status is one line."""
    plugin = Plugin()
    plugin.unready = ["", "no\nkubelet", "no socket"]
    async with background_task(plugin.tell(systemd.environment)):
        assert await systemd.told() == "STATUS=no kubelet; no socket"


async def test_ready_is_told_once(systemd: Systemd) -> None:
    """A service that was ready stays it: the status alone tells that the kubelet is away, and that it is back."""
    plugin = Plugin()
    plugin.unready = []
    async with background_task(plugin.tell(systemd.environment)):
        assert (await systemd.told()).startswith("READY=1")
        plugin.unready = ["waiting for the kubelet"]
        assert await systemd.told() == "STATUS=waiting for the kubelet"
        plugin.unready = []
        assert await systemd.told() == "STATUS=registered"


async def test_what_has_not_changed_is_not_told_again(systemd: Systemd) -> None:
    """Without a watchdog there is one message for each change."""
    plugin = Plugin()
    looks = 0

    def unready() -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 20:
            plugin.stop.set()
        return ["waiting for the kubelet"]

    await tell(unready, list, plugin.stop, systemd.environment, OFTEN)
    assert systemd.pending() == ["STATUS=waiting for the kubelet", "STOPPING=1"]


async def test_stopping(systemd: Systemd) -> None:
    """The end is told when the stop is, also of a plugin that was never ready, and nothing comes after it."""
    plugin = Plugin()
    telling = asyncio.create_task(plugin.tell(systemd.environment))
    await systemd.told()
    plugin.stop.set()
    await telling
    assert systemd.pending() == ["STOPPING=1"]


async def test_stopping_is_told_though_the_task_is_cancelled(systemd: Systemd) -> None:
    """The stop may end whoever runs this before it takes note."""
    plugin = Plugin()
    async with background_task(plugin.tell(systemd.environment)):
        await systemd.told()
        plugin.stop.set()
    assert systemd.pending() == ["STOPPING=1"]


async def test_another_configuration_is_no_stop(systemd: Systemd) -> None:
    """Cancelled without a stop, as at a reload, nothing is told."""
    plugin = Plugin()
    async with background_task(plugin.tell(systemd.environment)):
        await systemd.told()
    assert systemd.pending() == []


async def test_watchdog_beats_while_all_is_well(systemd: Systemd) -> None:
    """WATCHDOG=1 comes again and again, before the plugin is registered too."""
    plugin = Plugin()
    async with background_task(plugin.tell(systemd.environment | {"WATCHDOG_USEC": "60000000"})):
        assert "WATCHDOG=1" in await systemd.told()
        assert await systemd.told() == "WATCHDOG=1"
        assert await systemd.told() == "WATCHDOG=1"


async def test_watchdog_is_left_to_bite_where_the_plugin_is_unhealthy(systemd: Systemd) -> None:
    """What fails /healthz keeps WATCHDOG=1 back, until it is over."""
    plugin = Plugin()
    plugin.unhealthy = ["the look at the devices does not return"]
    async with background_task(plugin.tell(systemd.environment | {"WATCHDOG_USEC": "60000000"})):
        assert await systemd.told() == "STATUS=not registered yet"
        plugin.unready = ["still not"]
        assert await systemd.told() == "STATUS=still not"
        plugin.unhealthy = [""]
        assert await until(systemd, lambda text: "WATCHDOG" in text) == "WATCHDOG=1"


async def test_a_watchdog_that_is_short_is_met(systemd: Systemd) -> None:
    """A sign of life comes at half the time that there is, however long the looks are apart otherwise."""
    plugin = Plugin()
    environment = systemd.environment | {"WATCHDOG_USEC": "2000"}
    async with background_task(tell(list, list, plugin.stop, environment, interval=3600.0)):
        await systemd.told()
        assert await systemd.told() == "WATCHDOG=1"


@pytest.mark.parametrize(("patience", "seconds"), [(0.0, 1.0), (60.0, 1.0), (2.0, 1.0), (0.5, 0.25)])
def test_two_looks_fit_into_the_watchdogs_time(patience: float, seconds: float) -> None:
    """Where that is short, the looks are closer; where there is no watchdog, as far apart as ever."""
    assert between_looks(1.0, patience) == seconds


async def test_nobody_asked() -> None:
    """Without NOTIFY_SOCKET it is over at once, and nothing is looked at."""

    def never() -> list[str]:
        raise AssertionError

    for environment in ({}, {"NOTIFY_SOCKET": ""}):
        await tell(never, never, asyncio.Event(), environment)


async def test_abstract_socket() -> None:
    """A name that begins with @ is that of a socket without a file."""
    name = f"aosp-plugin-test-{os.getpid()}"
    receiver = Systemd(f"@{name}", f"\0{name}")
    try:
        async with background_task(Plugin().tell(receiver.environment)):
            assert await receiver.told() == "STATUS=not registered yet"
    finally:
        receiver.close()


async def test_what_could_not_be_told_is_told_later(tmp_path: Path) -> None:
    """A socket that is not there yet is no reason to end, and READY=1 is not lost over it."""
    path = str(tmp_path / "notify")
    plugin = Plugin()
    failed = asyncio.Event()

    def unready() -> list[str]:
        if failed.is_set():
            return [""]
        asyncio.get_running_loop().call_soon(failed.set)
        return [""]

    async with background_task(tell(unready, list, plugin.stop, {"NOTIFY_SOCKET": path}, OFTEN)):
        await failed.wait()
        receiver = Systemd(path, path)
        assert await receiver.told() == "READY=1\nSTATUS=registered"
        receiver.close()


async def test_a_full_socket_does_not_hold_up_the_event_loop(systemd: Systemd) -> None:
    """Nobody reads: the messages that don't fit are dropped, and the plugin goes on to its stop."""
    plugin = Plugin()
    looks = 0

    def unready() -> list[str]:
        nonlocal looks
        looks += 1
        if looks == 2000:
            plugin.stop.set()
        return [f"problem {looks}"]

    await tell(unready, list, plugin.stop, systemd.environment, 0.0)
    assert looks == 2000


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "0"}, 0.0),
    ],
)
def test_watchdog_is_for_this_process(environment: dict[str, str], seconds: float) -> None:
    """Its time is in microseconds; one that is for another process is none."""
    assert watchdog(environment, 7) == seconds
