"""What the alerts make of a plugin whose kubelet, look or stream is broken: of its own metrics, while it is so.

What ``/readyz``, ``/healthz``, the metrics and the log say in each case is in ``tests/integration/test_metrics.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from unittest import mock

from aosp_plugin.framework import refresher
from tests.e2e.deploy.faults import Recorded, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LONG: Final = 12
"""Minutes in which an alert of these comes, and goes."""


def kubelet_stopped() -> None:
    """A kubelet is stopped: AospPluginNotRegistered fires until it is back, by the plugin's own metrics."""
    _prove(_kubelet_stopped)


async def _kubelet_stopped(one: Recorded) -> None:
    async with one.running():
        await _well(one)
        await one.kubelet.stop()
        await one.until(lambda: "registration failed" in one.plugin.unready, "the plugin knows")
        await one.pass_minutes(LONG)
        one.firing("AospPluginNotRegistered")
        await one.kubelet.start()
        await _well(one)


def look_hangs() -> None:
    """A look hangs: AospPluginScanHung fires until it has returned, by the plugin's own metrics."""
    _prove(_look_hangs)


async def _look_hangs(one: Recorded) -> None:
    async with one.running():
        await _well(one)
        await _hung(one)
        one.firing("AospPluginScanHung")
        one.look.set()
        await one.until(lambda: not one.plugin.unhealthy, "the look has returned")
        await _well(one)


def look_hangs_for_the_next() -> None:
    """It hangs for the next process as well, as /healthz has the container restarted: nor is that one registered."""
    _prove(_look_hangs_for_the_next)


async def _look_hangs_for_the_next(one: Recorded) -> None:
    async with one.running():
        await _well(one)
        await _hung(one)
    async with one.running():
        await one.pass_minutes(LONG)
        one.firing("AospPluginScanHung", "AospPluginNotRegistered")


def stream_lost() -> None:
    """A stream is lost: nothing fires where it comes again, and AospPluginNotRegistered while the kubelet hangs."""
    _prove(_stream_lost)


async def _stream_lost(one: Recorded) -> None:
    async with one.running():
        await _well(one)
        await one.kubelet.drop_streams()
        await one.until(lambda: len(one.kubelet.registrations) == 2, "it registers again")
        await _well(one)
        one.kubelet.faults.hang_register = True
        await one.kubelet.drop_streams()
        await one.until(lambda: one.plugin.unready, "the plugin knows")
        await one.pass_minutes(LONG)
        one.firing("AospPluginNotRegistered")
        one.kubelet.faults.release_register()
        await _well(one)


def stream_lost_again_and_again() -> None:
    """It is lost each minute, and comes again: AospPluginRegistrationFlapping fires."""
    _prove(_stream_lost_again_and_again)


async def _stream_lost_again_and_again(one: Recorded) -> None:
    async with one.running():
        await _well(one)
        for times in range(2, 8):
            await one.kubelet.drop_streams()
            await one.until(lambda times=times: len(one.kubelet.registrations) == times, "it registers again")  # type: ignore[misc]
            await one.registered()
            await one.pass_minutes(1)
        one.firing("AospPluginRegistrationFlapping")


async def _well(one: Recorded) -> None:
    await one.registered()
    await one.pass_minutes(LONG)
    one.firing()


async def _hung(one: Recorded) -> None:
    one.look.clear()
    one.plugin.rescan()
    await one.until(lambda: one.plugin.unhealthy, "the plugin knows")
    await one.pass_minutes(LONG)


def _prove(scenario: Callable[[Recorded], Coroutine[None, None, None]]) -> None:
    async def proved() -> None:
        async with recorded() as one:
            await scenario(one)

    # Half a second, where a look counts as hung after half a minute in life.
    with mock.patch.object(refresher, "HUNG_AFTER", 0.5):
        asyncio.run(proved())


ITEMS = (kubelet_stopped, look_hangs, look_hangs_for_the_next, stream_lost, stream_lost_again_and_again)
