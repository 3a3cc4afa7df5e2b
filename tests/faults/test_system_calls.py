"""Allocate and GetPreferredAllocation answer from memory: strace sees no call on a file of the host."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.support import PATIENCE, DeviceDirectory, Serve, listed, sockets

OF_GRPC = "/sys/devices/system/cpu/"
"""gRPC reads the frequency of the clock there once, at any time. It is no file of a device or of the configuration."""

CALLS = "trace=%file,getdents64,flock,fsync"
"""All calls that take a file name, such as stat, readlink, open, mount and inotify_add_watch, and three more."""

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None or os.geteuid() != 0, reason="requires root and strace (apt-get install strace)"
)


@contextlib.asynccontextmanager
async def traced(pid: int, output: Path) -> AsyncIterator[None]:
    """Trace all threads of a process into a file inside the context."""
    strace = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-ttt", "-e", CALLS, "-o", str(output), "-p", str(pid)), stderr=asyncio.subprocess.PIPE
    )
    assert strace.stderr is not None
    try:
        line = (await asyncio.wait_for(strace.stderr.readline(), PATIENCE)).decode()
        if "attached" not in line:
            pytest.skip(f"strace may not attach here: {line.strip()}")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            strace.send_signal(signal.SIGINT)
        await asyncio.wait_for(strace.communicate(), PATIENCE)


async def test_allocate_and_preference_access_no_file(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path
) -> None:
    """Containers get devices, mounts, an environment and CDI names. A scan afterwards shows that strace works.

    The event loop's thread answers. Worker threads scan at any time, for example when something is mounted on the host;
    the tests with a file system that hangs show that no request waits for them.
    """
    device_directory.add(*range(9))
    (tmp_path / "shared").mkdir()
    (tmp_path / "gpu0").symlink_to("/dev/null")
    (tmp_path / "cdi").mkdir()
    environment = {
        "AOSP_PLUGIN_CDI_DIR": str(tmp_path / "cdi"),
        "AOSP_PLUGIN_DEVICE_LIST": "envvar,volume-mounts,cdi-cri",
        "AOSP_PLUGIN_SHARED_MOUNTS": f"{tmp_path}/shared:/shared",
        "AOSP_PLUGIN_SPREAD_DEVICES": f"{tmp_path}/gpu*",
        "AOSP_PLUGIN_POD_RESOURCES_SOCKET": "",
    }
    output = tmp_path / "calls"
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, environment=environment) as serve:
        await listed(kubelet, 9)
        while "aosp.io_binder.json" not in await asyncio.to_thread(
            os.listdir, tmp_path / "cdi"
        ):  # the spec is written after the list
            pass
        (endpoint,) = sockets(kubelet_dir)
        async with (
            grpc.aio.insecure_channel(f"unix:{kubelet_dir}/{endpoint}") as channel,
            traced(serve.process.pid, output),
        ):
            ids = sorted(kubelet.resource("aosp.io/binder").devices)
            stub = DevicePluginStub(channel)
            for first in range(20):
                container = pb.ContainerAllocateRequest(devices_ids=[ids[(first + step) % 9] for step in range(3)])
                response = await stub.Allocate(pb.AllocateRequest(container_requests=[container]))
                assert len(response.container_responses[0].cdi_devices) == 3
                preferred = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=3)
                await stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[preferred]))
            answered = time.time()
            device_directory.add(9)
            await listed(kubelet, 10)
    calls = re.findall(r"^(\d+) +(\d+\.\d+) (\w+\(.*)", output.read_text(), re.MULTILINE)
    in_loop = [call for thread, at, call in calls if int(thread) == serve.process.pid and float(at) < answered]
    assert [call for call in in_loop if f'"{OF_GRPC}' not in call] == []
    assert any("aosp_binder9" in call for _, at, call in calls if float(at) >= answered)
