"""Items: phones for ResourceClaims on a real binder driver, in containers with what the backend returns for a claim."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.backend.claims_backend import ClaimsBackend, kernel_version
from aosp_plugin.binder.driver import mounts
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from aosp_plugin.config.keys import PHONE_DEFAULTS, Phones, Resource
from aosp_plugin.config.values import Api
from kubelet_standin import ContainerAllocation
from kubelet_standin import pods as given
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.phones import DIRECTORY, NAMES, RESOURCE, path
from tests.e2e.kernel.world import is_open, until

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

COUNT: Final = 120
TENANTS: Final = 20
_PAST: Final = 20
"""Minor numbers beyond those that one phone needs; a leak of one per tenant exceeds it."""


def backend() -> ClaimsBackend:
    """Return the backend of a process that has just started."""
    resource = Resource(phones=Phones(count=COUNT), api=Api.DRA, **{**PHONE_DEFAULTS, "shared_devices": ()})
    started = ClaimsBackend(Host(), resource, cdi_dir="/run/cdi")
    started.scan()
    started.update_host()
    return started


def container(prepared: ClaimsBackend, *ids: str) -> ContainerAllocation:
    """Return what a container gets with these phones, as a request of one claim each."""
    edits = [part for device_id in ids for part in prepared.prepare([device_id], [])]
    return ContainerAllocation(
        name="android",
        device_ids={RESOURCE: ids},
        envs={name: value for part in edits for name, value in part.environment.items()},
        mounts=tuple(given.Mount(m.container_path, m.host_path, m.read_only) for part in edits for m in part.mounts),
        devices=tuple(
            given.DeviceSpec(node.container_path, node.host_path, node.permissions)
            for part in edits
            for node in part.devices
        ),
        annotations={},
        cdi_devices=(),
    )


def mounted() -> list[str]:
    """Return the phones that are mounted for claims, each as often as it is."""
    with open(mounts.MOUNTINFO, encoding="utf-8") as table:
        found = [mount.directory for mount in mounts.parse(table.read()) if mount.source == CLAIM_SOURCE]
    return sorted(map(os.path.basename, found))


def offered(_world: World) -> None:
    """120 phones are offered with the attributes of driver and kernel, and none is mounted."""
    started = backend()
    assert [device.id for device in started.devices() if device.healthy] == phones.phones(COUNT)
    assert started.attributes("phone7") == {
        "number": 7,
        "binderDevices": 3,
        "driver": "c",
        "kernelVersion": kernel_version(os.uname().release),
    }
    assert mounted() == []
    assert not os.path.exists(DIRECTORY)


async def whole(world: World, runtime: str) -> None:
    """A container with a claim has its phone at Android's paths and in /dev/binderfs, and is manager of each device."""
    started = backend()
    phone = container(started, "phone1")
    assert mounted() == ["phone1"]
    await check(runtime, phone, phones.whole("phone1") | phones.sealed(), probe=world.probe)
    started.unprepare(["phone1"])
    assert mounted() == []
    assert os.listdir(DIRECTORY) == []


async def tenants(world: World) -> None:
    """20 claims, each of another user, have the same phone in turn: each is manager, and minor numbers are not lost."""
    started = backend()
    numbers = []
    for number in range(TENANTS):
        phone = container(started, "phone0")
        numbers += [os.minor(os.stat(path("phone0", name)).st_rdev) for name in NAMES]
        await check("crun", phone, phones.managed_by(1000 + number), probe=world.probe)
        started.unprepare(["phone0"])
    assert max(numbers) - min(numbers) < _PAST, f"minor numbers from {min(numbers)} to {max(numbers)}"


async def still_running(world: World) -> None:
    """A phone is removed although a container still runs with it; the next claim gets a fresh one, and both work."""
    started = backend()
    holding = {f"manage /dev/{name}": "ok" for name in NAMES} | {"await /go": "ok", "version /dev/vndbinder": "8"}
    running = await start("runc", container(started, "phone0"), holding, probe=world.probe)
    await until(lambda: is_open(path("phone0", "vndbinder")), "the container runs")
    started.unprepare(["phone0"])
    assert mounted() == []
    await check("runc", container(started, "phone0"), phones.managed_by(1000), probe=world.probe)
    running.release()
    await running.end()
    started.unprepare(["phone0"])


def left_behind(_world: World) -> None:
    """What a killed process has left is removed by the next one, except for the phones that prepared claims have."""
    for phone in ("phone0", "phone1", "phone2"):
        container(backend(), phone)
    later = backend()
    before = os.stat(path("phone1")).st_dev
    container(later, "phone1")
    later.retain({"phone1"})
    assert mounted() == ["phone1"]
    assert os.stat(path("phone1")).st_dev == before
    later.retain(())
    assert mounted() == []


ITEMS: Final[list[Item[World]]] = [
    item(offered),
    *for_each_runtime(whole),
    *(item(tenants), item(still_running), item(left_behind)),
]
