"""Items: phones for ResourceClaims on a real binder driver, in containers with what the backend returns for a claim."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.binder.driver.host import Host, read_mounts
from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from aosp_plugin.config.keys import Phones, Resource
from aosp_plugin.config.values import Api
from kubelet_standin import ContainerAllocation
from kubelet_standin.deviceplugin import pods as given
from tests.backends import Served
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.phones import DIRECTORY, NAMES, RESOURCE, path
from tests.e2e.kernel.world import is_open, until

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

TENANTS: Final = 20
_PAST: Final = 20
"""Minor numbers beyond those that one phone needs; a leak of one per tenant exceeds it."""


def backend(**keys: Any) -> Served:
    """Return the backend of a process that has just started, with further keys of its resource."""
    resource = Resource.of(phones=Phones(count=2), api=Api.DRA, **{"shared_devices": (), **keys})
    started = Served(ClaimsBackend(Host(), resource, cdi_dir="/run/cdi"))
    started.scan()
    started.update_host()
    return started


def container(prepared: Served, *ids: str) -> ContainerAllocation:
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
    found = [mount.directory for mount in read_mounts() if mount.source == CLAIM_SOURCE]
    return sorted(map(os.path.basename, found))


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


ITEMS: Final[list[Item[World]]] = [
    *for_each_runtime(whole),
    *(item(tenants), item(still_running)),
]
