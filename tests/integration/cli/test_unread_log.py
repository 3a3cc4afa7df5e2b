"""Nothing that reads the log can stop the process: its standard error is a pipe that is full from the start."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.service.logs import LIMIT
from kubelet_standin import Container, Kubelet, Pod
from tests.full_pipe import FullPipe
from tests.support import PATIENCE, RESOURCE, DeviceDirectory, Serve, answered, connected, free_port, http_get, listed

DROPPED = r"\naosp_plugin_log_records_dropped_total (\d+)"


async def refused_requests(kubelet: Kubelet) -> None:
    """Send Allocate requests whose log records, together, do not fit into the queue."""
    unknown = pb.ContainerAllocateRequest(devices_ids=["x"])
    async with connected(kubelet) as channel:
        for _ in range(LIMIT + 4):
            with pytest.raises(grpc.aio.AioRpcError):
                await DevicePluginStub(channel).Allocate(pb.AllocateRequest(container_requests=[unknown]))


async def test_plugin_works_while_nobody_reads_its_log(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """What was dropped is counted, and said in the log when it flows again. Its last lines come as well."""
    device_directory.add(0, 1, 2)
    port = free_port()
    flags = ("--listen", f"127.0.0.1:{port}")
    with FullPipe() as pipe:
        async with Serve(device_directory, kubelet.directory, *flags, stderr=pipe.writer) as serve:
            await listed(kubelet, 3)
            device_directory.remove(1)
            await listed(kubelet, 2)
            await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
            await answered(port, "/readyz", "ok: ")
            assert (await http_get(port, "/healthz"))[0] == 200
            await refused_requests(kubelet)
            _, _, metrics = await http_get(port, "/metrics")
            (count,) = re.findall(DROPPED, metrics)
            assert int(count) >= 4
            log = await asyncio.to_thread(pipe.read_until, "log records dropped")
            (reported,) = re.findall(r" WARNING log records dropped count=(\d+)$", log, re.MULTILINE)
            assert int(reported) >= int(count)
            assert log.index(" INFO registered ") < log.index(" WARNING log records dropped")
            serve.signal(signal.SIGTERM)
            assert await serve.finish() == 0
            assert " INFO stopped " in await asyncio.to_thread(pipe.read_until, " INFO stopped ")


@pytest.mark.parametrize(
    ("command", "configuration", "code"),
    [
        ("serve", {"kubelet_dir": "FILE/kubelet"}, 1),
        ("provision", {"phones": {"count": 1, "directory": "FILE/phones"}}, 1),
        ("provisioner", {"phones": 1}, 2),
        ("config", {"phones": 1}, 2),
    ],
)
def test_command_that_fails_while_nobody_reads_ends_with_its_exit_code(
    tmp_path: Path, command: str, configuration: dict[str, object], code: int
) -> None:
    """Its message is written if it can be, and lost otherwise."""
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"version": "v1", **configuration}).replace("FILE", str(file)))
    words = (sys.executable, "-m", "aosp_plugin", command, f"--config={file}")
    with FullPipe() as pipe:
        assert subprocess.run(words, stderr=pipe.writer, timeout=PATIENCE, check=False).returncode == code  # noqa: S603
