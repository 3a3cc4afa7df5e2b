"""Devices of the host besides binder: loop devices and GPUs of phones, and the devices of Cuttlefish."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from aosp_plugin.config.keys import SliceDevices
from kubelet_standin import ContainerAllocation
from tests.e2e.kernel import phones
from tests.e2e.kernel.claims import backend, container
from tests.e2e.kernel.confinement import PHONE_PROFILE
from tests.e2e.kernel.containers import HOLDING, check, start
from tests.e2e.kernel.operations import mknod
from tests.e2e.kernel.world import DIRECTORY, World, checked

LOOPS: Final = 40
"""The loop devices of a phone, of which the guest has twice as many."""
IMAGES: Final = DIRECTORY / "images"
GPU: Final = "/dev/gpu"
BMC: Final = "/dev/dri/card0"


@pytest.fixture(scope="module", autouse=True)
async def image(shared_world: World) -> None:
    """Make an image of a disk."""
    IMAGES.mkdir()
    await checked("mke2fs", "-q", "-F", "-t", "ext4", f"{IMAGES}/disk", "1M")


async def test_claimed_loops(runtime: str) -> None:
    """A container with a claim mounts an image on a loop device of its 40; the 40 of its neighbour do not open."""
    slices = SliceDevices(path="/dev/loop*", count=LOOPS)
    started = backend(slice_devices=(slices,), shared_mounts=(str(IMAGES),))
    await _check_loops(runtime, container(started, "phone1"))
    started.unprepare(["phone1"])


async def test_loops(world: World, runtime: str) -> None:
    """The same without claims; phones for which the host has no loop devices are unhealthy."""
    keys = f"slice_devices: [{{path: /dev/loop*, count: {LOOPS}}}]\nshared_mounts: [{IMAGES}]\n"
    await world.serve_with(f"phones: {{count: 4}}\n{keys}", resource=phones.RESOURCE)
    await world.healthy(2, unhealthy=2)
    await _check_loops(runtime, await world.started(f"disk-{runtime}"))


async def _check_loops(runtime: str, allocation: ContainerAllocation) -> None:
    """Check that a container opens its own loop devices and no other ones."""
    own, foreign = {"phone0": (0, LOOPS), "phone1": (LOOPS, 0)}[phones.phone_of(allocation)]
    expected = {"mkdir /disk": "ok", f"attach-image /dev/loop{own} {IMAGES}/disk": "ok"}
    expected |= {f"mount-disk /dev/loop{own} /disk": "ok", "see /disk/lost+found": "ok"}
    expected |= {f"open /dev/loop{own + number}": "ok" for number in range(LOOPS)}
    for number in range(foreign, foreign + LOOPS):
        expected |= {f"see /dev/loop{number}": "ENOENT", f"mknod-block /dev/copy{number} 7 {number}": "ok"}
        expected |= {f"open /dev/copy{number}": "EPERM"}
    await check(runtime, allocation, expected, capabilities=phones.ADMIN, profile=PHONE_PROFILE)


async def test_gpus(world: World, runtime: str) -> None:
    """A phone has card and render node of one GPU, and opens no other one; a lost GPU concerns its phones only."""
    # The card of a BMC has no render node, so that the numbers of the GPUs' cards and render nodes differ.
    keys = f"spread_devices: [/dev/dri/card*, {{path: /dev/dri/renderD*, container_path: {GPU}, env: GPU}}]\n"
    await world.serve_with(f"phones: {{count: 4}}\n{keys}", resource=phones.RESOURCE)
    await world.healthy(4)
    allocations = [await world.started(f"gpu-{name}-{runtime}") for name in ("a", "b")]
    given = [_gpu_of(allocation) for allocation in allocations]
    for allocation, (own, others) in zip(allocations, (given, given[::-1]), strict=True):
        assert allocation.envs["GPU"] == GPU
        assert _hardware(own[0]) == _hardware(own[1]) != _hardware(others[0])
        expected = {f"open {own[0]}": "ok", f"open {GPU}": "ok"}
        for path in (*others, BMC):
            copy = path.replace("/dri/", "/copy-")
            expected |= {f"see {path}": "ENOENT", mknod(copy, path): "ok", f"open {copy}": "EPERM"}
        await check(runtime, allocation, expected)
    hardware = Path(_hardware(given[1][0]))  # a device of virtio, or that of PCI
    next(each / "remove" for each in (hardware, hardware.parent) if (each / "remove").exists()).write_text("1")
    await world.healthy(2, unhealthy=2)
    Path("/sys/bus/pci/rescan").write_text("1")
    await world.healthy(4)


async def test_cuttlefish(world: World, runtime: str) -> None:
    """Containers of examples/cuttlefish.py have a CID each, vhost-net and a tap at once; another opens no device."""
    await world.stop()
    program = f"from examples.cuttlefish import *; serve(Cuttlefish(), kubelet_dir={world.kubelet.directory!r})"
    world.process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    world.resource = "example.com/cuttlefish"
    await world.healthy(0, unhealthy=16)
    # The guest has no virtualization: nothing opens this device.
    await checked("mknod", "/dev/kvm", "c", "10", "232")
    await world.healthy(16)
    slots = [await world.admit(f"{name}-{runtime}", 1) for name in ("a", "b")]
    running = []
    for slot in slots:
        expected = {"take-cid /dev/vhost-vsock": slot.envs["VSOCK_GUEST_CID"], "own /dev/vhost-net": "ok"}
        expected |= {"tap /dev/net/tun": "ok", **HOLDING}
        running.append(await start(runtime, slot, expected, capabilities=phones.ADMIN))
        await running[-1].is_up()
    await check(runtime, slots[0], {"take-cid /dev/vhost-vsock": "EADDRINUSE"})
    without = {"see /dev/net/tun": "ENOENT"}
    for name in ("vhost-vsock", "vhost-net", "kvm"):
        copy = f"/dev/copy-{name}"
        without |= {f"see /dev/{name}": "ENOENT", mknod(copy, f"/dev/{name}"): "ok", f"open {copy}": "EPERM"}
    await check(runtime, replace(slots[0], devices=()), without)
    for each in running:
        await each.end()
    Path("/dev/kvm").unlink()
    await world.healthy(0, unhealthy=16)


def _gpu_of(allocation: ContainerAllocation) -> tuple[str, str]:
    """Return card and render node of a container, as paths of the host."""
    card, node = (device.host_path for device in allocation.devices if device.host_path.startswith("/dev/dri/"))
    return card, node


def _hardware(path: str) -> str:
    return os.path.realpath(f"/sys/class/drm/{os.path.basename(path)}/device")
