"""SIGTERM ends a process whatever hangs in it: a worker thread or the event loop."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.faults.hanging_fs import HangingFileSystem
from tests.faults.test_reload import LOADING, SIGNAL_AT_EVENT
from tests.support import PATIENCE, DeviceDirectory, Serve, answered, free_port, listed, sockets

PROGRAM = """
import os, sys
from functools import partial
from aosp_plugin.framework import ListedDevices, serve
from aosp_plugin.framework.service import serving
from aosp_plugin.framework.timing import Timings

serving.Runtime = partial(serving.Runtime, timings=Timings(hang=0.5))
kubelet_dir, what, directory = sys.argv[1:]

class Thing(ListedDevices):
    def allocate(self, found, ids):  # violates the contract: it answers from what the scan has found
        if what == "allocate":
            os.stat(directory)
        return super().allocate(found, ids)

def list_devices():
    if what == "list":
        os.listdir(directory)
    return ["/dev/thing"]

serve(Thing("example.com/thing", list_devices, directories=()), kubelet_dir=kubelet_dir, pod_resources_socket="")
"""


async def start(tmp_path: Path, kubelet_dir: str, what: str, directory: str) -> asyncio.subprocess.Process:
    """Run the program; ``what`` hangs in it if the directory does."""
    (tmp_path / "plugin.py").write_text(PROGRAM)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "plugin.py"), kubelet_dir, what, directory), stderr=asyncio.subprocess.PIPE
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int | None, list[str]]:
    """Wait for the end of the process; return its exit code and its log."""
    _, output = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, output.decode().splitlines()


async def test_list_function_that_hangs_does_not_keep_the_process(
    kubelet_dir: str, tmp_path: Path, hanging_file_system: HangingFileSystem
) -> None:
    """The plugin has registered without devices before, and its socket is removed. The end is a normal one."""
    hanging_file_system.hang()
    async with Kubelet(kubelet_dir) as kubelet:
        process = await start(tmp_path, kubelet_dir, "list", hanging_file_system.directory)
        await hanging_file_system.until_waiting()
        await listed(kubelet, 0, "example.com/thing")
        process.terminate()
        code, log = await finish(process)
    assert code == 0
    assert "WARNING close is overdue, leaving it" in log[-1]
    assert "because of a device scan that has not ended" in log[-1]
    assert sockets(kubelet_dir) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("again", [False, True])
async def test_event_loop_that_hangs_is_a_forced_exit(
    kubelet_dir: str, tmp_path: Path, hanging_file_system: HangingFileSystem, number: signal.Signals, *, again: bool
) -> None:
    """A backend violates its contract. Further signals postpone nothing; the next start removes the socket."""
    async with Kubelet(kubelet_dir) as kubelet:
        process = await start(tmp_path, kubelet_dir, "allocate", hanging_file_system.directory)
        await listed(kubelet, 1, "example.com/thing")
        hanging_file_system.hang()
        (endpoint,) = sockets(kubelet_dir)
        async with grpc.aio.insecure_channel(f"unix:{kubelet_dir}/{endpoint}") as channel:
            container = pb.ContainerAllocateRequest(devices_ids=["thing"])
            request = pb.AllocateRequest(container_requests=[container])
            allocating = asyncio.ensure_future(DevicePluginStub(channel).Allocate(request))
            await hanging_file_system.until_waiting()
            process.send_signal(number)
            finished = asyncio.ensure_future(finish(process))
            async with asyncio.timeout(PATIENCE):
                while again and process.returncode is None:
                    process.send_signal(number)
                    await asyncio.wait({finished}, timeout=0.5)
            code, log = await finished
            with pytest.raises(grpc.aio.AioRpcError):
                await allocating
    assert code == 0, log
    assert "WARNING forced exit" in log[-1]
    assert "main thread in allocate (plugin.py:" in log[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_before_the_event_loop_is_handled_later(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Here it comes while modules are loaded. The first process of a container would never get it again."""
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_AT_EVENT)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PYTHONPATH": path, "SIGNAL": str(int(number)), "EVENT": LOADING, "SINCE": "SIGNAL"}
    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}")
    async with Serve(device_directory, kubelet_dir, *flags, environment=environment) as serve:
        if number is signal.SIGHUP:
            await answered(port, "/status", '"last_reload":{')
            serve.signal(signal.SIGTERM)
        assert await serve.finish() == 0
