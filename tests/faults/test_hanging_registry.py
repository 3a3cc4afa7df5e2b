"""A DRA driver bears a directory plugins_registry that hangs, as on a network file system whose server is gone."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator

import pytest

from kubelet_standin import DraKubelet
from tests.dra_drivers import DRIVER, FAST_KUBELET, PATIENT, Driver, pod, running_driver
from tests.faults.hanging_fs import HangingFileSystem
from tests.support import PATIENCE, causes, reported, until

OTHER = "tablet.example.com"

SOON = PATIENT._replace(hang=0.2, safety=0.1)
"""Report a hang after a moment, and access the directory often."""


@pytest.fixture
def registry(kubelet_dir: str) -> Iterator[tuple[HangingFileSystem, str]]:
    """Return a file system that hangs on request, and a path of the kubelet's directory that leads through it."""
    with tempfile.TemporaryDirectory() as directory, HangingFileSystem(f"{directory}/h") as file_system:
        os.symlink(kubelet_dir, f"{file_system.source}/r")
        yield file_system, f"{file_system.directory}/r"


async def connected(kubelet: DraKubelet, driver: Driver) -> None:
    """Wait until the kubelet has registered the driver."""
    await kubelet.wait_for(lambda k: k.connected(DRIVER) and driver.service.registered, PATIENCE)


async def test_registered_driver_answers_during_a_hang(
    kubelet_dir: str, registry: tuple[HangingFileSystem, str]
) -> None:
    """The hang is a problem until it ends, and then the registration is the same."""
    file_system, path = registry
    async with DraKubelet(kubelet_dir, timings=FAST_KUBELET) as kubelet, running_driver(path, timings=SOON) as driver:
        await connected(kubelet, driver)
        with file_system.hanging():
            await file_system.until_waiting()
            await until(lambda: "kubelet directory has been hanging for" in causes(driver.service))
            await kubelet.prepare(pod("game"))
            assert driver.service.registered
        await until(lambda: not reported(driver.service))
        assert len(kubelet.registrations) == 1


async def test_driver_that_begins_during_a_hang_registers_after_it(
    kubelet_dir: str, registry: tuple[HangingFileSystem, str]
) -> None:
    """And one that is stopped before it could register ends."""
    file_system, path = registry
    async with DraKubelet(kubelet_dir, timings=FAST_KUBELET) as kubelet:
        file_system.hang()
        try:
            async with running_driver(path, name=OTHER, timings=SOON) as other:
                await file_system.until_waiting()
            assert not other.service.registered
            async with running_driver(path, timings=SOON) as driver:
                await until(lambda: "has been hanging for" in causes(driver.service))
                file_system.release()
                await connected(kubelet, driver)
                await asyncio.wait_for(until(lambda: not reported(driver.service)), PATIENCE)
        finally:
            file_system.release()
