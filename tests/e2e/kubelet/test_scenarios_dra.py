"""Scenarios for the kubelet's dealings with DRA drivers, on the real kubelet and on ``kubelet_standin.DraKubelet``.

Without an API server there are no claims: these are about registration and health.
"""

import os

import pytest

from aosp_plugin.framework.dra.claims import DeviceHealth
from tests.dra_drivers import Driver, running_driver
from tests.e2e.common.waiting import eventually
from tests.e2e.kubelet.managers import DeviceManager, restart
from tests.e2e.kubelet.versions import DRA
from tests.support import counted


async def _registered(driver: Driver, count: int = 1) -> None:
    """Wait until the kubelet has confirmed this many registrations, and a health stream waits for changes."""
    await eventually(lambda: driver.service.registered and _registrations(driver) >= count, f"{count} registrations")
    await _watched(driver)


async def _watched(driver: Driver) -> None:
    await eventually(lambda: driver.handler.changed._waiters, "a health stream waits for changes")


def _registrations(driver: Driver) -> float:
    return counted(driver.metrics, "registrations_total", result="ok")


@pytest.mark.requires(DRA)
async def test_dra_registers(kubelet: DeviceManager) -> None:
    """A DRA driver registers: one socket, without an endpoint, serves the kubelet's calls and its health stream."""
    name = "registers.scenario.test"
    async with running_driver(kubelet.registry, name=name) as driver:
        await _registered(driver)
        driver.handler.report(DeviceHealth("pool", "device", "unhealthy"))
        await _watched(driver)
        assert _registrations(driver) == 1
    assert not [entry for entry in os.listdir(kubelet.registry) if name in entry]


@pytest.mark.requires(DRA)
async def test_dra_kubelet_restarts(kubelet: DeviceManager) -> None:
    """A DRA driver registers again with each restarted kubelet, on the same socket."""
    async with running_driver(kubelet.registry, name="restarts.scenario.test") as driver:
        await _registered(driver)
        endpoint = driver.service.endpoint
        for count in (2, 3, 4):
            await restart(kubelet)
            await _registered(driver, count)
        assert driver.service.endpoint == endpoint


@pytest.mark.requires(DRA)
async def test_dra_socket_deleted(kubelet: DeviceManager) -> None:
    """A DRA driver whose socket is deleted registers another one."""
    async with running_driver(kubelet.registry, name="deleted.scenario.test") as driver:
        await _registered(driver)
        first = driver.service.endpoint
        os.unlink(os.path.join(kubelet.registry, first))
        await _registered(driver, 2)
        assert driver.service.endpoint != first
