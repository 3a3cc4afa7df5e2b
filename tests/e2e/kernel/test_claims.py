"""Phones for ResourceClaims on a real binder driver, in containers with what the backend returns for a claim."""

import os
from typing import Final

from aosp_plugin.binder.driver.host import read_mounts
from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from tests.e2e.kernel import phones
from tests.e2e.kernel.claims import backend, container
from tests.e2e.kernel.containers import HOLDING, check, start
from tests.e2e.kernel.phones import DIRECTORY, NAMES, path

TENANTS: Final = 20
_PAST: Final = 20
"""Minor numbers beyond those that one phone needs; a leak of one per tenant exceeds it."""


def mounted() -> list[str]:
    """Return the phones that are mounted for claims, each as often as it is."""
    found = [mount.directory for mount in read_mounts() if mount.source == CLAIM_SOURCE]
    return sorted(map(os.path.basename, found))


async def test_whole(runtime: str) -> None:
    """A container with a claim has its phone at Android's paths and in /dev/binderfs, and is manager of each device."""
    started = backend()
    phone = container(started, "phone1")
    assert mounted() == ["phone1"]
    await check(runtime, phone, phones.whole("phone1") | phones.sealed())
    started.unprepare(["phone1"])
    assert mounted() == []
    assert os.listdir(DIRECTORY) == []


async def test_tenants() -> None:
    """20 claims, each of another user, have the same phone in turn: each is manager, and minor numbers are not lost."""
    started = backend()
    numbers = []
    for number in range(TENANTS):
        phone = container(started, "phone0")
        numbers += [os.minor(os.stat(path("phone0", name)).st_rdev) for name in NAMES]
        await check("crun", phone, phones.managed_by(1000 + number))
        started.unprepare(["phone0"])
    assert max(numbers) - min(numbers) < _PAST, f"minor numbers from {min(numbers)} to {max(numbers)}"


async def test_still_running() -> None:
    """A phone is removed although a container still runs with it; the next claim gets a fresh one, and both work."""
    started = backend()
    holding = {**phones.MANAGED, **HOLDING, "version /dev/vndbinder": "8"}
    running = await start("runc", container(started, "phone0"), holding)
    await running.is_up()
    started.unprepare(["phone0"])
    assert mounted() == []
    await check("runc", container(started, "phone0"), phones.managed_by(1000))
    await running.end()
    started.unprepare(["phone0"])
