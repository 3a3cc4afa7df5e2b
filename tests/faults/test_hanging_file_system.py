"""A file system of the host that hangs, and a plugin process that must not hang with it.

The file system is real (``tests.faults.hanging_fs``), and so is the process. The kubelet's directory is never on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet
from tests.served_node import ServedNode
from tests.support import RESOURCE, Serve, answered, free_port, http_get, listed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub
    from tests.faults.hanging_fs import HangingFileSystem

OTHER = "aosp.io/hwbinder"
ANSWER = 10.0
"""Seconds after which an RPC has failed to answer."""

ALL = {"aosp_binder0": "Healthy", "aosp_binder1": "Healthy"}


class Host(ServedNode):
    """A host with a kubelet, and two resources in one device directory, part of which can hang."""

    def __init__(self, directory: Path, kubelet: Kubelet, hanging: HangingFileSystem) -> None:
        off = {"pod_resources_socket": "", "shared_mounts": [], "shared_devices": []}
        super().__init__(directory, kubelet, port=free_port(), **off)
        self.hanging = hanging

    def configure(self, *, cdi_dir: str = "/none", **keys: object) -> Path:
        """Write the configuration; ``keys`` are those of the first resource."""
        other = {"resource_name": OTHER, "device_prefix": "aosp_hwbinder"}
        return super().configure(cdi_dir=cdi_dir, resources=[{"resource_name": RESOURCE, **keys}, other])

    def add_hanging(self, number: int) -> None:
        """Add a device that is a link into the file system that can hang."""
        name = f"aosp_binder{number}"
        Path(self.hanging.source, name).touch()
        (self.devices.directory / name).symlink_to(f"{self.hanging.directory}/{name}")

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator[DevicePluginAsyncStub]:
        """Connect to the plugin as another client than the kubelet."""
        endpoints = [entry.endpoint for entry in self.kubelet.registrations if entry.resource_name == RESOURCE]
        path = os.path.join(self.kubelet.directory, endpoints[-1])
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            yield DevicePluginStub(channel)

    async def kubelet_has(self, devices: dict[str, str]) -> None:
        """Wait until the kubelet has exactly these devices with their health."""
        await self.kubelet.wait_for(lambda kubelet: kubelet.resource(RESOURCE).devices == devices)

    async def ends(self, serve: Serve) -> None:
        """Stop the process while something in it waits for the file system."""
        await self.hanging.until_waiting()
        serve.signal(signal.SIGTERM)
        assert await serve.finish() == 0
        assert "close timed out" in "".join(serve.log)

    async def other_resource_goes_on(self) -> None:
        """Add a device to the other resource, and wait until the kubelet has it."""
        count = self.kubelet.resource(OTHER).capacity
        (self.devices.directory / f"aosp_hwbinder{count}").touch()
        await listed(self.kubelet, count + 1, OTHER)


@pytest.fixture
async def host(kubelet: Kubelet, tmp_path: Path, hanging_file_system: HangingFileSystem) -> Host:
    """Return a host with the healthy device 0."""
    host = Host(tmp_path, kubelet, hanging_file_system)
    host.devices.add(0)
    host.configure()
    return host


async def allocate(stub: DevicePluginAsyncStub, device: str) -> pb.ContainerAllocateResponse:
    """Allocate a device."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
    return (await stub.Allocate(request, timeout=ANSWER)).container_responses[0]


async def prefer(stub: DevicePluginAsyncStub, *available: str) -> list[str]:
    """Ask for the preferred one of the available devices."""
    container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=1)
    request = pb.PreferredAllocationRequest(container_requests=[container])
    response = await stub.GetPreferredAllocation(request, timeout=ANSWER)
    return list(response.container_responses[0].deviceIDs)


async def first_message(stub: DevicePluginAsyncStub) -> dict[str, str]:
    """Return the devices of the first message of another stream."""
    async for message in stub.ListAndWatch(pb.Empty(), timeout=ANSWER):
        return {device.ID: device.health for device in message.devices}
    raise AssertionError("the stream ended without a message")


async def probes(host: Host) -> list[int]:
    """Return the status codes of the HTTP endpoints."""
    return [(await http_get(host.port, path))[0] for path in ("/healthz", "/readyz", "/metrics", "/status")]


# -- a device that is a link into the file system


async def test_devices_stay_as_they_are_and_nothing_else_changes(host: Host) -> None:
    """Every RPC and endpoint answers, /readyz says what hangs, and the other resource notices nothing.

    What a container gets besides its device is on the file system, too: requests are answered from memory. A scan that
    waits for the file system does not delay the end.
    """
    host.add_hanging(1)
    shared, gpu = f"{host.hanging.directory}/shared", f"{host.hanging.directory}/gpu0"
    os.mkdir(f"{host.hanging.source}/shared")
    os.symlink("/dev/null", f"{host.hanging.source}/gpu0")
    host.configure(shared_mounts=[f"{shared}:/shared"], spread_devices=[f"{host.hanging.directory}/gpu*"])
    async with host.process() as serve:
        await host.kubelet_has(ALL)
        await host.other_resource_goes_on()
        host.hanging.hang()
        host.devices.add(2)
        await host.hanging.until_waiting()
        async with host.stub() as stub:
            assert await first_message(stub) == ALL
            assert await prefer(stub, "aosp_binder0", "aosp_binder1") == ["aosp_binder0"]
            for device in ALL:
                container = await allocate(stub, device)
                assert [mount.host_path for mount in container.mounts] == [shared]
                assert [node.host_path for node in container.devices][1:] == [gpu]
            await host.other_resource_goes_on()
            await answered(host.port, "/readyz", "hanging for")
            assert await probes(host) == [200, 503, 200, 200]
            assert host.kubelet.resource(RESOURCE).devices == ALL
            host.hanging.release()
            await host.kubelet_has({**ALL, "aosp_binder2": "Healthy"})
        assert len(host.kubelet.registrations) == 2
        host.hanging.hang()
        host.devices.remove(2)
        await host.ends(serve)


async def test_process_starts_during_the_hang(host: Host) -> None:
    """The resource has no devices until the file system answers."""
    host.add_hanging(1)
    host.hanging.hang()
    async with host.process():
        await host.other_resource_goes_on()
        await host.kubelet_has({})
        host.hanging.release()
        await host.kubelet_has(ALL)


# -- other parts of the host on the file system


async def test_cdi_directory_delays_only_the_resource(host: Host) -> None:
    """A change is published, and the next one when the spec is written. The process ends meanwhile."""
    os.mkdir(f"{host.hanging.source}/cdi")
    host.configure(device_list=["volume-mounts", "cdi-cri"], cdi_dir=f"{host.hanging.directory}/cdi")
    spec = Path(host.hanging.source, "cdi", f"{RESOURCE.replace('/', '_')}.json")
    async with host.process() as serve:
        await listed(host.kubelet, 1)
        await until_written(spec, "aosp_binder0")
        host.hanging.hang()
        host.devices.add(1)
        await host.kubelet_has(ALL)
        await host.hanging.until_waiting()
        host.devices.add(2)
        await host.other_resource_goes_on()
        await answered(host.port, "/readyz", "host update has been hanging for")
        async with host.stub() as stub:
            assert (await allocate(stub, "aosp_binder1")).devices
        assert (await http_get(host.port, "/healthz"))[0] == 200
        host.hanging.release()
        await host.kubelet_has({**ALL, "aosp_binder2": "Healthy"})
        await until_written(spec, "aosp_binder2")
        host.hanging.hang()
        host.devices.remove(2)
        await host.ends(serve)


async def test_renamed_resource_offers_no_device_that_a_pod_may_have_while_its_first_update_hangs(host: Host) -> None:
    """Where the kubelet cannot be asked, a pod may have each device that was offered by the former name."""
    async with host.process():
        await listed(host.kubelet, 1)
    os.mkdir(f"{host.hanging.source}/cdi")
    name = "example.com/binder"
    host.configure(
        resource_name=name, device_list=["volume-mounts", "cdi-cri"], cdi_dir=f"{host.hanging.directory}/cdi"
    )
    host.hanging.hang()
    async with host.process():
        await host.hanging.until_waiting()
        await host.kubelet.wait_for(lambda kubelet: kubelet.resource(name).devices == {"aosp_binder0": "Unhealthy"})
        host.hanging.release()


async def until_written(file: Path, text: str) -> None:
    """Wait until a file contains a text."""
    while text not in await asyncio.to_thread(content, file):
        pass


def content(file: Path) -> str:
    """Return the content of a file, empty if there is none."""
    return file.read_text() if file.exists() else ""
