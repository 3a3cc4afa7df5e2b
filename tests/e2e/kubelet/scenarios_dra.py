"""Scenarios for the kubelet's dealings with DRA drivers, on the real kubelet and on ``kubelet_standin.DraKubelet``.

Without an API server there are no claims: these are about registration and health.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.framework.dra.claims import DeviceHealth
from tests.dra_drivers import Driver, running_driver
from tests.e2e.kubelet import scenarios
from tests.e2e.kubelet.scenarios import restart, scenario
from tests.e2e.kubelet.versions import DRA
from tests.e2e.kubelet.waiting import PATIENCE
from tests.support import counted

if TYPE_CHECKING:
    from tests.e2e.kubelet.scenarios import DeviceManager

NAME: Final = "{}.scenario.test"


def _name(resource: str) -> str:
    return NAME.format(resource.rpartition("/")[2])


async def _registered(driver: Driver) -> None:
    """Wait until the kubelet has confirmed a registration."""
    async with asyncio.timeout(PATIENCE):
        while not driver.service.registered:
            await asyncio.sleep(0.05)


async def _watched(driver: Driver) -> None:
    """Wait until a health stream waits for changes."""
    async with asyncio.timeout(PATIENCE):
        while not driver.handler.changed._waiters:
            await asyncio.sleep(0.05)


def _registrations(driver: Driver) -> float:
    return counted(driver.metrics, "registrations_total", result="ok")


@scenario(
    "A DRA driver registers: one socket, without an endpoint, serves the kubelet's calls and its health stream", DRA
)
async def dra_registers(kubelet: DeviceManager, resource: str) -> None:
    async with running_driver(kubelet.registry, name=_name(resource)) as driver:
        await _registered(driver)
        await _watched(driver)
        driver.handler.report(DeviceHealth("pool", "device", "unhealthy"))
        await _watched(driver)
        assert _registrations(driver) == 1, f"{_registrations(driver)}"
    assert not [name for name in os.listdir(kubelet.registry) if _name(resource) in name]


@scenario("A DRA driver registers again with each restarted kubelet, on the same socket", DRA)
async def dra_kubelet_restarts(kubelet: DeviceManager, resource: str) -> None:
    async with running_driver(kubelet.registry, name=_name(resource)) as driver:
        await _registered(driver)
        endpoint = driver.service.endpoint
        for count in (2, 3, 4):
            await restart(kubelet)
            async with asyncio.timeout(PATIENCE):
                while _registrations(driver) < count:
                    await asyncio.sleep(0.05)
            await _watched(driver)
        assert driver.service.endpoint == endpoint, driver.service.endpoint


@scenario("A DRA driver whose socket is deleted registers another one", DRA)
async def dra_socket_deleted(kubelet: DeviceManager, resource: str) -> None:
    async with running_driver(kubelet.registry, name=_name(resource)) as driver:
        await _registered(driver)
        first = driver.service.endpoint
        os.unlink(os.path.join(kubelet.registry, first))
        async with asyncio.timeout(PATIENCE):
            while _registrations(driver) < 2 or not driver.service.registered:
                await asyncio.sleep(0.05)
        assert driver.service.endpoint != first
        await _watched(driver)


ALL: Final = scenarios.ALL
"""The scenarios of both modules."""
