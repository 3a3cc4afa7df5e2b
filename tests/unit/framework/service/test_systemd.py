"""Notifications to systemd, over a real socket."""

import asyncio
import math
import time

import pytest

from aosp_plugin.framework.service.process import notify, watchdog_timeout
from aosp_plugin.framework.timing import background_task
from tests.support import PATIENCE
from tests.systemd import Systemd

SHORT = 0.001
"""Seconds between two checks in these tests."""


class State:
    """The problems of a plugin, set by the test."""

    def __init__(self) -> None:
        self.unready = ["not registered yet"]
        self.stop, self.reloading = asyncio.Event(), asyncio.Event()
        self.checks = 0
        self.last_check = math.inf

    async def notify(self, environment: dict[str, str], interval: float = SHORT) -> None:
        """Run the notifications until they are stopped."""
        await notify(self._check, self.stop, self.reloading, environment, interval)

    def _check(self) -> list[str]:
        self.checks += 1
        if self.checks == self.last_check:
            self.stop.set()
        return self.unready if math.isinf(self.last_check) else [f"problem {self.checks}"]


async def test_ready_is_sent_once_all_resources_are_registered(systemd: Systemd) -> None:
    """Until then the status names the problems in one line. Later problems change the status only."""
    state = State()
    state.unready = ["no\nkubelet", "no socket"]
    async with background_task(state.notify(systemd.environment)):
        assert await systemd.receive() == "STATUS=no kubelet; no socket"
        state.unready = []
        assert await systemd.receive() == "READY=1\nSTATUS=registered"
        state.unready = ["waiting for kubelet"]
        assert await systemd.receive() == "STATUS=waiting for kubelet"
        state.unready = []
        assert await systemd.receive() == "STATUS=registered"


@pytest.mark.parametrize("cancel", [False, True])
async def test_stopping_is_sent_last(systemd: Systemd, *, cancel: bool) -> None:
    """It is sent even if the task is cancelled, because another one has failed, and if the plugin was never ready."""
    state = State()
    async with background_task(state.notify(systemd.environment)) as task:
        await systemd.receive()
        if not cancel:
            state.stop.set()
            await task
    assert systemd.pending() == ["STOPPING=1"]


async def test_reload_is_the_last_message_with_its_time(systemd: Systemd) -> None:
    """Systemd compares the time with that of its request. A plugin that is ready by then does not say so any more."""
    state = State()
    before = time.monotonic_ns() // 1000
    async with background_task(state.notify(systemd.environment)) as task:
        await systemd.receive()
        state.unready = []
        state.reloading.set()
        await task
    (message,) = systemd.pending()
    kind, _, began = message.partition("\nMONOTONIC_USEC=")
    assert kind == "RELOADING=1"
    assert before <= int(began) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize(("interval", "timeout"), [(SHORT, 3600.0), (3600.0, 2 * SHORT)])
async def test_watchdog_is_fed_whatever_the_problems_are(systemd: Systemd, interval: float, timeout: float) -> None:
    """A restart cures neither an unregistered plugin nor a host with problems."""
    state, watchdog = State(), {"WATCHDOG_USEC": f"{timeout * 1e6:.0f}"}
    async with asyncio.timeout(PATIENCE), background_task(state.notify(systemd.environment | watchdog, interval)):
        assert await systemd.receive() == "STATUS=not registered yet\nWATCHDOG=1"
        assert await systemd.receive() == "WATCHDOG=1"
        state.unready = ["device scan is hanging"]
        while await systemd.receive() != "STATUS=device scan is hanging\nWATCHDOG=1":
            pass
        assert await systemd.receive() == "WATCHDOG=1"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}])
async def test_nothing_is_checked_without_a_socket(environment: dict[str, str]) -> None:
    state = State()
    await state.notify(environment)
    assert state.checks == 0


async def test_full_socket_does_not_block_the_event_loop(systemd: Systemd) -> None:
    """Messages that do not fit are dropped."""
    state = State()
    state.last_check = 2000
    await state.notify(systemd.environment, 0.0)
    assert state.checks == 2000


def test_watchdog_timeout_is_that_of_this_process() -> None:
    for environment, seconds in (
        ({}, 0.0),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ):
        assert watchdog_timeout(environment, 7) == seconds
