"""Items: alerts from the metrics of a plugin whose kubelet, scan or stream is broken.

``tests/integration/test_metrics.py`` checks ``/readyz``, ``/healthz``, metrics and log in these cases.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final
from unittest import mock

from aosp_plugin.framework import refresher
from tests.e2e.deploy.faults import Recorder, recorder_of_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LONG: Final = 12
"""Minutes within which these alerts fire and resolve."""


def kubelet_stopped() -> None:
    """The kubelet is stopped: AospPluginNotRegistered fires until it runs again."""
    _check(_kubelet_stopped)


async def _kubelet_stopped(recorder: Recorder) -> None:
    async with recorder.running():
        await _no_alert(recorder)
        await recorder.kubelet.stop()
        await recorder.until(lambda: "registration failed" in recorder.plugin.unready, "the plugin reports it")
        await recorder.pass_minutes(LONG)
        recorder.firing("AospPluginNotRegistered")
        await recorder.kubelet.start()
        await _no_alert(recorder)


def scan_hangs() -> None:
    """A scan hangs: AospPluginScanHung fires until the scan returns."""
    _check(_scan_hangs)


async def _scan_hangs(recorder: Recorder) -> None:
    async with recorder.running():
        await _no_alert(recorder)
        await _hung(recorder)
        recorder.firing("AospPluginScanHung")
        recorder.scan_released.set()
        await recorder.until(lambda: not recorder.plugin.unhealthy, "the scan has returned")
        await _no_alert(recorder)


def scan_hangs_after_restart() -> None:
    """The scan hangs again after a restart by /healthz: AospPluginScanHung and AospPluginNotRegistered fire."""
    _check(_scan_hangs_after_restart)


async def _scan_hangs_after_restart(recorder: Recorder) -> None:
    async with recorder.running():
        await _no_alert(recorder)
        await _hung(recorder)
    async with recorder.running():
        await recorder.pass_minutes(LONG)
        recorder.firing("AospPluginScanHung", "AospPluginNotRegistered")


def stream_lost() -> None:
    """A stream is lost: no alert if the plugin registers again, AospPluginNotRegistered while the kubelet hangs."""
    _check(_stream_lost)


async def _stream_lost(recorder: Recorder) -> None:
    async with recorder.running():
        await _no_alert(recorder)
        await recorder.kubelet.drop_streams()
        await recorder.until(lambda: len(recorder.kubelet.registrations) == 2, "the plugin registers again")
        await _no_alert(recorder)
        recorder.kubelet.faults.hang_register = True
        await recorder.kubelet.drop_streams()
        await recorder.until(lambda: recorder.plugin.unready, "the plugin reports it")
        await recorder.pass_minutes(LONG)
        recorder.firing("AospPluginNotRegistered")
        recorder.kubelet.faults.release_register()
        await _no_alert(recorder)


def stream_lost_again_and_again() -> None:
    """A stream is lost every minute: AospPluginRegistrationFlapping fires."""
    _check(_stream_lost_again_and_again)


async def _stream_lost_again_and_again(recorder: Recorder) -> None:
    async with recorder.running():
        await _no_alert(recorder)
        for times in range(2, 8):
            await recorder.kubelet.drop_streams()
            await recorder.until(partial(_registrations, recorder, times), "the plugin registers again")
            await recorder.registered()
            await recorder.pass_minutes(1)
        recorder.firing("AospPluginRegistrationFlapping")


def _registrations(recorder: Recorder, count: int) -> bool:
    return len(recorder.kubelet.registrations) == count


async def _no_alert(recorder: Recorder) -> None:
    await recorder.registered()
    await recorder.pass_minutes(LONG)
    recorder.firing()


async def _hung(recorder: Recorder) -> None:
    recorder.scan_released.clear()
    recorder.plugin.rescan()
    await recorder.until(lambda: recorder.plugin.unhealthy, "the plugin reports it")
    await recorder.pass_minutes(LONG)


def _check(scenario: Callable[[Recorder], Coroutine[None, None, None]]) -> None:
    async def check() -> None:
        async with recorder_of_plugin() as recorder:
            await scenario(recorder)

    # Half a second, instead of the half minute after which a scan counts as hung.
    with mock.patch.object(refresher, "HUNG_AFTER", 0.5):
        asyncio.run(check())


ITEMS = (kubelet_stopped, scan_hangs, scan_hangs_after_restart, stream_lost, stream_lost_again_and_again)
