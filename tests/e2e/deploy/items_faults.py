"""Items: each alert is fired by plugin processes that are in its state.

``tests/faults/test_signals.py`` checks probes, metrics and log in some of these states.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from tests.e2e.deploy.faults import Process, World, item
from tests.hanging_fs import HangingFileSystem
from tests.support import unprivileged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub

LONG: Final = 12
"""Minutes within which most alerts fire and resolve."""
HOUR: Final = 62
"""Minutes after which the alerts that compare with the last hour have resolved."""
INCOMPLETE: Final = "AospPluginLeakDetectionIncomplete"
"""Fires where not even root can inspect all processes, as on some virtual machines."""
LEAK_SCAN_INTERVAL: Final = 300
"""Of deploy/privileged/config.yaml; the default is 0, off."""


# -- the process


async def plugin_ends(world: World) -> None:
    """No plugin: AospPluginAbsent fires, and AospPluginGone on the node that had one."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
    await world.fires("AospPluginGone", within=LONG)
    await world.fires("AospPluginGone", "AospPluginAbsent", within=LONG)
    with world.running("b") as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)


async def plugin_restarts(world: World) -> None:
    """The plugin restarts: AospPluginRestarting fires at the third time, and nothing in a rolling restart."""
    world.devices.add(0, 1)
    for minutes in (HOUR, LONG, 1, 1):
        with world.running() as process:
            await world.registered(process, 2)
            await world.pass_minutes(minutes)
            if world.starts < 4:
                world.firing()
    world.firing("AospPluginRestarting")


async def node_reboots(world: World) -> None:
    """The pod's successor, with another address, finds its devices minutes later: nothing fires."""
    world.devices.add(0, 1)
    with world.running() as process:
        await world.registered(process, 2)
        await world.fires(within=HOUR)
        world.devices.remove(0, 1)
    await world.kubelet.stop()
    await world.fires(within=3)
    await world.kubelet.start()
    with world.running("b") as process:
        await world.registered(process, 0)
        await world.fires(within=5)
        world.devices.add(0, 1)
        await world.registered(process, 2)
        await world.fires(within=HOUR)


# -- the kubelet


async def kubelet_stopped(world: World) -> None:
    """The kubelet is stopped: AospPluginNotRegistered fires until it runs again."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
        await world.kubelet.stop()
        await world.until(lambda: process.value("registered") == 0, "the plugin notices")
        await world.fires("AospPluginNotRegistered", within=LONG)
        await world.kubelet.start()
        await world.registered(process, 1)
        await world.fires(within=LONG)


async def kubelet_restarts(world: World) -> None:
    """The kubelet restarts again and again: AospPluginKubeletRestarts and AospPluginRegistrationFlapping fire."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
        for count in range(1, 7):
            await world.kubelet.restart()
            await world.until(
                partial(_equals, process, "kubelet_restarts_total", count), "the plugin notices that it restarts"
            )
            await world.registered(process, 1)
            await world.pass_minutes(1)
        world.firing("AospPluginKubeletRestarts", "AospPluginRegistrationFlapping")


def _equals(process: Process, name: str, value: float) -> bool:
    return process.value(name) == value


async def stream_lost(world: World) -> None:
    """A stream is lost: nothing fires, unless the kubelet hangs then, or it happens again and again."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
        await _drop_streams(world, 2)
        await world.registered(process, 1)
        await world.fires(within=LONG)
        world.kubelet.faults.hang_register = True
        await _drop_streams(world, 3)
        await world.fires("AospPluginNotRegistered", within=LONG)
        world.kubelet.faults.release_register()
        await world.registered(process, 1)
        await world.fires(within=LONG)
        for count in range(4, 10):
            await _drop_streams(world, count)
            await world.registered(process, 1)
            await world.pass_minutes(1)
        world.firing("AospPluginRegistrationFlapping")


async def _drop_streams(world: World, count: int) -> None:
    await world.kubelet.drop_streams()
    await world.until(lambda: len(world.kubelet.registrations) >= count, "the plugin registers again")


# -- the devices


async def devices_missing(world: World) -> None:
    """Devices vanish: AospPluginDevicesUnhealthy fires while they are listed as missing, then AospPluginDevicesLost."""
    world.devices.add(*range(10))
    with world.running() as process:
        await world.registered(process, 10)
        await world.fires(within=LONG)
        world.devices.remove(7, 8, 9)
        await world.registered(process, 7)
        await world.fires("AospPluginDevicesUnhealthy", within=4)
        await world.until(lambda: process.value("devices", reason="missing") in {0, 3}, "a scan")
        await world.pass_minutes(4)
        await world.until(lambda: process.value("devices") == 7, "the missing devices are forgotten")
        await world.fires("AospPluginDevicesLost", within=LONG)
        await world.fires(within=HOUR)


async def devices_lost_at_a_restart(world: World) -> None:
    """Devices vanish while the plugin is away, and its successor never knew them: AospPluginDevicesLost fires."""
    world.devices.add(*range(10))
    with world.running() as process:
        await world.registered(process, 10)
        await world.fires(within=LONG)
    world.devices.remove(9)
    with world.running("b") as process:
        await world.registered(process, 9)
        await world.fires("AospPluginDevicesLost", within=LONG)


async def all_devices_missing(world: World) -> None:
    """All devices vanish: AospPluginNoHealthyDevices fires, and AospPluginNoDevices after they are forgotten."""
    world.devices.add(0, 1)
    with world.running() as process:
        await world.registered(process, 2)
        await world.fires(within=LONG)
        world.devices.remove(0, 1)
        await world.registered(process, 0)
        await world.fires("AospPluginNoHealthyDevices", "AospPluginDevicesUnhealthy", within=4)
        await world.pass_minutes(3)
        await world.until(lambda: process.value("devices") == 0, "the missing devices are forgotten")
        await world.fires("AospPluginNoDevices", "AospPluginDevicesLost", within=LONG)


async def devices_not_provisioned(world: World) -> None:
    """Devices cannot be provisioned, here for lack of rights: AospPluginDevicesNotProvisioned fires."""
    provision = {"count": 6, "directory": str(world.directory / "binderfs")}
    world.let_everyone_in()
    with world.running(prefix=unprivileged(()), provision=provision, sets={"size": 3}) as process:
        await world.registered(process, 0)
        assert process.value("devices_expected") == 2, "two sets of three"
        await world.pass_minutes(LONG)
        world.firing("AospPluginDevicesNotProvisioned", "AospPluginNoDevices", "AospPluginHostUpdateFailing")


async def devices_used_up(world: World) -> None:
    """More than nine of ten devices are allocated: AospPluginDevicesNearlyUsedUp fires."""
    world.devices.add(*range(20))
    with world.running() as process:
        await world.registered(process, 20)
        await world.admit(18)
        await world.until(lambda: process.value("devices_allocated") == 18, "the plugin knows it")
        await world.fires(within=20)
        await world.admit(1, "last")
        await world.until(lambda: process.value("devices_allocated") == 19, "the plugin knows it")
        await world.fires("AospPluginDevicesNearlyUsedUp", within=20)


# -- the host


async def scan_hangs(world: World) -> None:
    """A device is on a file system that hangs: AospPluginScanHung fires until it answers."""
    world.devices.add(0)
    with HangingFileSystem(world.directory / "fuse") as files:
        with open(f"{files.source}/aosp_binder1", "wb"):  # noqa: ASYNC230
            pass
        (world.devices.directory / "aosp_binder1").symlink_to(f"{files.directory}/aosp_binder1")
        with world.running() as process:
            await world.registered(process, 2)
            await world.fires(within=LONG)
            files.hang()
            await world.pass_minutes(1, scans=False)
            await world.until(lambda: process.value("scans_total", result="hung") >= 1, "the plugin notices")
            await world.fires("AospPluginScanHung", within=LONG, scans=False)
            files.release()
            await world.pass_minutes(1)
            await world.fires(within=LONG)
            files.hang()
        files.release()


async def scans_fail(world: World) -> None:
    """Scans fail, here because the device directory is a link to itself: AospPluginScanFailing fires."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
        directory = world.devices.directory
        directory.rename(f"{directory}.old")
        directory.symlink_to(directory)
        await world.until(lambda: process.value("scans_total", result="failed") >= 1, "the plugin notices")
        await world.fires("AospPluginScanFailing", within=LONG)
        directory.unlink()
        directory.with_suffix(".old").rename(directory)
        await world.pass_minutes(1)
        await world.fires(within=LONG)


async def changes_arrive_late(world: World) -> None:
    """Scans fail for a minute each time that a device appears: AospPluginUpdatesSlow fires."""
    world.devices.add(0)
    directory = world.devices.directory
    with world.running() as process:
        await world.registered(process, 1)
        for number in range(1, 28):
            before = process.value("scans_total", result="failed")
            directory.rename(f"{directory}.old")
            directory.symlink_to(directory)
            await world.until(lambda before=before: process.value("scans_total", result="failed") > before, "a failure")  # type: ignore[misc]
            await world.pass_minutes(1, scans=False)
            directory.unlink()
            directory.with_suffix(".old").rename(directory)
            world.devices.add(number)
            await world.registered(process, number + 1)
            await world.confirmed(process, number + 1)
        await world.fires("AospPluginUpdatesSlow", within=1)


async def cdi_directory_is_full(world: World) -> None:
    """The file system of the CDI directory is full: AospPluginHostUpdateFailing fires until there is space."""
    world.devices.add(0)
    with _mounted(world, "tmpfs", "size=64k") as directory:
        cdi = directory / "cdi"
        filler = directory / "filler"
        with world.running(cdi_dir=str(cdi), device_list=["envvar", "cdi-cri"]) as process:
            await world.registered(process, 1)
            await world.fires(within=LONG)
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            world.devices.add(1)  # its containers would need the spec, so it is unhealthy
            await world.until(lambda: process.value("devices", reason="not-in-cdi-spec") == 1, "the plugin notices")
            await world.fires("AospPluginHostUpdateFailing", "AospPluginDevicesUnhealthy", within=LONG)
            filler.unlink()
            await world.registered(process, 2)
            await world.pass_minutes(1)
            await world.fires(within=LONG)


async def inotify_exhausted(world: World) -> None:
    """No inotify instance is available: AospPluginPolling fires."""
    limited = 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"'
    world.devices.add(0)
    with world.running(prefix=("unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh")) as process:
        await world.registered(process, 1)
        await world.fires("AospPluginPolling", within=20)


# -- more than one plugin


async def second_plugin(world: World) -> None:
    """A second plugin serves the resource: AospPluginSecondPlugin fires until it ends."""
    world.devices.add(0, 1)
    with world.running() as process:
        await world.registered(process, 2)
        await world.fires(within=LONG)
        with world.running("b") as second:
            await world.until(lambda: second.value("registered") == 1, "the second plugin is registered")
            await world.until(lambda: process.value("other_plugins") == 1, "the first plugin notices")
            await world.fires("AospPluginSecondPlugin", within=LONG)
            world.processes.pop("b").end()
        await world.until(lambda: process.value("other_plugins") == 0, "the first plugin notices")
        await world.registered(process, 2)
        await world.pass_minutes(1)
        await world.fires(within=LONG)


async def kubelet_lacks_devices(world: World) -> None:
    """The kubelet's device manager hangs, with all streams open: AospPluginKubeletLacksDevices fires."""
    world.devices.add(0, 1)
    with world.running() as process:
        await world.registered(process, 2)
        await world.confirmed(process, 2)
        await world.fires(within=LONG)
        world.kubelet.faults.ignore_devices = True
        world.devices.add(2)
        await world.until(lambda: process.value("devices", health="healthy") == 3, "the plugin has the device")
        flapping = "AospPluginRegistrationFlapping"  # the plugin registers again, with growing pauses
        await world.fires("AospPluginKubeletLacksDevices", within=LONG, ignoring=flapping)
        world.kubelet.faults.ignore_devices = False
        world.devices.add(3)
        await world.registered(process, 4)
        await world.confirmed(process, 4)
        await world.fires(within=20)


async def foreign_stream(world: World) -> None:
    """Another client opens a stream, such as a debugging tool, and closes it: nothing fires."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        async with _stub(world) as plugin:
            stream = plugin.ListAndWatch(pb.Empty())
            await stream.read()
            await world.fires(within=LONG)
        await world.fires(within=LONG)


# -- requests


async def requests_fail(world: World) -> None:
    """The kubelet requests an unknown device: AospPluginAllocationsFailing fires."""
    world.devices.add(0)
    with world.running() as process:
        await world.registered(process, 1)
        await world.fires(within=LONG)
        async with _stub(world) as plugin:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await plugin.Allocate(_request("aosp_binder7"))
        await world.fires("AospPluginAllocationsFailing", within=2)
        await world.fires(within=20)


async def devices_cannot_be_recreated(world: World) -> None:
    """Devices are to be recreated, and are not in a binderfs: AospPluginRecreationsFailing fires."""
    world.devices.add(0, 1)
    with world.running(recreate="on-start") as process:
        await world.registered(process, 0)
        await world.pass_minutes(2)
        async with _stub(world) as plugin:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["aosp_binder0"]))
        await world.pass_minutes(5)
        world.firing("AospPluginRecreationsFailing", "AospPluginDevicesUnhealthy", "AospPluginNoHealthyDevices")


async def no_processor_time(world: World) -> None:
    """The process gets a sixth of a processor, and a pod wants 30,000 devices: AospPluginAllocateSlow fires."""
    world.devices.add(*range(30_000))
    with world.running() as process:
        await world.registered(process, 30_000)
        async with _stub(world) as plugin:
            for _ in range(3):
                async with _throttled(process):
                    await plugin.Allocate(_request(*(f"aosp_binder{number}" for number in range(30_000))))
                await world.pass_minutes(1)
        await world.fires("AospPluginAllocateSlow", within=7)


async def too_many_devices(world: World) -> None:
    """220,000 devices exceed all limits: AospPluginDevicesTruncated, -MessageLarge and -MemoryHigh fire."""
    world.devices.add(*range(230_000))
    with world.running() as process:
        await world.until(lambda: process.value("registered") == 1, "the plugin is registered")
        await world.until(lambda: process.value("devices_truncated") > 0, "the list is truncated")
        await world.pass_minutes(17)
        world.firing("AospPluginDevicesTruncated", "AospPluginMessageLarge", "AospPluginMemoryHigh")


@contextlib.asynccontextmanager
async def _throttled(process: Process) -> AsyncIterator[None]:
    """Let the process run for a sixth of the time, as a cgroup with cpu.max does."""

    async def throttle() -> None:
        while True:
            process.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.1)
            process.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.02)

    throttling = asyncio.create_task(throttle())
    try:
        yield
    finally:
        throttling.cancel()
        process.process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def _stub(world: World) -> AsyncIterator[DevicePluginAsyncStub]:
    """Connect to the registered plugin as the kubelet does."""
    path = os.path.join(world.kubelet.directory, world.kubelet.registrations[-1].endpoint)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield DevicePluginStub(channel)


def _request(*ids: str) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


# -- leaks, which deploy/privileged detects


async def device_leaks(world: World) -> None:
    """A process outside pods holds a device open: AospPluginLeakedDevices fires until it closes it."""
    world.devices.add(0)
    with world.running(leak_scan_interval=LEAK_SCAN_INTERVAL) as process:
        await world.registered(process, 1)
        with open(world.devices.directory / "aosp_binder0", "rb"):  # noqa: ASYNC230
            await _leak_scan(world, process)
            assert process.value("leaked_devices") == 1
            await world.fires("AospPluginLeakedDevices", within=LONG, ignoring=INCOMPLETE)
        await _leak_scan(world, process)
        await world.fires(within=LONG, ignoring=INCOMPLETE)


async def leak_detection_is_incomplete(world: World) -> None:
    """Leak detection has no right to inspect processes: AospPluginLeakDetectionIncomplete fires."""
    world.devices.add(0)
    world.let_everyone_in()
    with world.running(prefix=unprivileged(()), leak_scan_interval=LEAK_SCAN_INTERVAL) as process:
        await world.registered(process, 1)
        await _leak_scan(world, process)
        await world.fires("AospPluginLeakDetectionIncomplete", within=35)


async def leak_detection_fails(world: World) -> None:
    """A process has a file open whose file system hangs, so leak scans hang: AospPluginLeakDetectionFailing fires."""
    world.devices.add(0)
    with HangingFileSystem(world.directory / "fuse") as files:
        (Path(files.source) / "file").touch()
        with _holding_open(f"{files.directory}/file"), world.running(leak_scan_interval=LEAK_SCAN_INTERVAL) as process:
            await world.registered(process, 1)
            await _leak_scan(world, process)
            await world.fires(within=LONG, ignoring=INCOMPLETE)
            files.hang()
            await world.pass_minutes(7)
            await world.until(lambda: process.value("leak_detection", state="failing") == 1, "the plugin notices")
            await world.fires("AospPluginLeakDetectionFailing", within=17, ignoring=INCOMPLETE)
            files.release()
            await _leak_scan(world, process)
            await world.until(lambda: process.value("leak_detection", state="failing") == 0, "a scan succeeds")
            await world.fires(within=LONG, ignoring=INCOMPLETE)


@contextlib.contextmanager
def _holding_open(path: str) -> Iterator[None]:
    """Run a process that holds a file open."""
    program = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        process.communicate()


async def _leak_scan(world: World, process: Process) -> None:
    """Let time pass until a leak scan has ended."""
    before = process.value("leak_scan_age_seconds")
    for _ in range(LEAK_SCAN_INTERVAL // 60 + 1):
        await world.pass_minutes(1)
    await world.until(
        lambda: process.value("leak_scan_age_seconds") < (before if before >= 0 else 1e9) + 120, "a leak scan"
    )


@contextlib.contextmanager
def _mounted(world: World, kind: str, options: str) -> Iterator[Path]:
    """Mount a file system over the device directory if it is an overlay, or else at a directory of its own."""
    directory = world.devices.directory if kind == "overlay" else world.directory / "mount"
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, "faults", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


ITEMS = [
    item(scenario)
    for scenario in (
        plugin_ends,
        plugin_restarts,
        node_reboots,
        kubelet_stopped,
        kubelet_restarts,
        stream_lost,
        devices_missing,
        devices_lost_at_a_restart,
        all_devices_missing,
        devices_used_up,
        scans_fail,
        changes_arrive_late,
        second_plugin,
        kubelet_lacks_devices,
        foreign_stream,
        requests_fail,
        devices_cannot_be_recreated,
        no_processor_time,
        too_many_devices,
    )
]
ROOT_ITEMS = [
    item(scenario)
    for scenario in (
        devices_not_provisioned,
        scan_hangs,
        cdi_directory_is_full,
        inotify_exhausted,
        device_leaks,
        leak_detection_is_incomplete,
        leak_detection_fails,
    )
]
"""Items that mount file systems, or need all rights to inspect processes."""
