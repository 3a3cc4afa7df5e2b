"""CDI specs stay when the plugin ends, whatever ends it, and go when their resource leaves the configuration."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.cdi import spec_path
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory
from kubelet_standin import Kubelet
from tests.support import DeviceDirectory, ServeHere, listed, until

PHONE, SIDECAR, OTHER, LAST = (f"aosp.io/{name}" for name in ("phone", "sidecar", "other", "last"))
PREFIXES = {PHONE: "aosp_binder", SIDECAR: "sidecar_binder", OTHER: "other_binder", LAST: "last_binder"}
REMOVED = "CDI spec of a former resource removed"
LISTEN = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); input()"
CDI, MOUNTS = ["envvar", "cdi-cri"], ["volume-mounts"]


class Node:
    """A host with a device of each resource, and an empty directory of CDI specs."""

    def __init__(self, directory: Path, kubelet: Kubelet) -> None:
        self.devices = DeviceDirectory(directory / "dev")
        for prefix in PREFIXES.values():
            (self.devices.directory / f"{prefix}0").touch()
        self.cdi = directory / "cdi"
        self.cdi.mkdir()
        self.kubelet = kubelet
        self._directory = directory

    def configure(self, **device_lists: list[str]) -> Path:
        """Write a configuration; ``device_lists`` are by the second part of the resource name."""
        resources = [
            {"resource_name": f"aosp.io/{key}", "device_prefix": PREFIXES[f"aosp.io/{key}"], "device_list": strategies}
            for key, strategies in device_lists.items()
        ]
        config = {"version": "v1", "cdi_dir": str(self.cdi), "resources": resources}
        path = self._directory / "config.yaml"
        path.write_text(json.dumps(config))
        return path

    def serve(self, config: Path) -> ServeHere:
        """Return a plugin with this configuration."""
        return ServeHere(self.devices, self.kubelet.directory, "--config", str(config))

    async def served(self, *resources: str) -> None:
        """Wait until the kubelet has the device of each of these resources, and several are recorded."""
        for resource in resources:
            await listed(self.kubelet, 1, resource)
        if len(resources) > 1:
            await self.recorded(*resources)

    async def removed(self, resource: str) -> None:
        """Wait until the spec of a resource is removed."""
        await until(lambda: not os.path.exists(spec_path(str(self.cdi), resource)))

    async def recorded(self, *resources: str) -> None:
        """Wait until a plugin has recorded its resources, which is the last thing that the removal does."""
        while not await asyncio.to_thread(self._recorded, resources):
            pass

    def _recorded(self, resources: tuple[str, ...]) -> bool:
        records = [path.read_bytes().decode(errors="replace") for path in self.cdi.glob(".*.resources")]
        return any(all(name in record for name in resources[1:]) for record in records)

    def specs(self) -> dict[str, bytes]:
        """Return the content of each spec that a runtime reads, by the kind of its devices."""
        contents = [
            (self.cdi / name).read_bytes() for name in os.listdir(self.cdi) if name.endswith((".json", ".yaml"))
        ]
        return {json.loads(content)["kind"]: content for content in contents}


@pytest.fixture
async def node(tmp_path: Path, kubelet_dir: str) -> AsyncIterator[Node]:
    async with Kubelet(kubelet_dir) as kubelet:
        yield Node(tmp_path, kubelet)


async def test_spec_stays_when_the_plugin_ends(node: Node) -> None:
    """Nor does a version that does not come up remove it."""
    async with node.serve(node.configure(phone=CDI)):
        await listed(node.kubelet, 1, PHONE)
        before = node.specs()
    assert list(before) == [PHONE]
    assert node.specs() == before
    async with node.serve(node.configure(phone=["unknown"])) as broken:
        assert await broken.finish() == 2
    assert node.specs() == before


async def test_spec_of_a_removed_resource_goes_at_the_next_start(node: Node) -> None:
    """Those of other programs stay."""
    foreign = {"nvidia.com-gpu.json": "nvidia.com/gpu", "aosp.io_foreign.json": "aosp.io/foreign"}
    for name, kind in foreign.items():
        (node.cdi / name).write_text(json.dumps({"kind": kind}))
    (node.cdi / ".aosp-damaged.resources").write_bytes(b'{"resources": ["\xff"]}')
    async with node.serve(node.configure(phone=CDI, sidecar=CDI)):
        await node.served(PHONE, SIDECAR)
    assert node.specs().keys() == {PHONE, SIDECAR, *foreign.values()}
    async with node.serve(node.configure(phone=CDI)) as plugin:
        await node.removed(SIDECAR)
        await until(lambda: any(REMOVED in line and "aosp.io_sidecar" in line for line in plugin.log))
        await node.served(PHONE)
    assert node.specs().keys() == {PHONE, *foreign.values()}


async def test_spec_of_a_removed_resource_goes_with_a_reload(node: Node) -> None:
    """Even if the configurations have no resource in common, because one process had both."""
    async with node.serve(node.configure(phone=CDI)) as plugin:
        await node.served(PHONE)
        node.configure(sidecar=CDI)
        plugin.signal(signal.SIGHUP)
        await node.removed(PHONE)
        await node.served(SIDECAR)
    assert list(node.specs()) == [SIDECAR]


async def test_spec_of_another_plugin_that_is_away_stays(node: Node) -> None:
    """It serves other resources of the node."""
    async with node.serve(node.configure(phone=CDI, sidecar=CDI)):
        await node.served(PHONE, SIDECAR)
    async with node.serve(node.configure(other=CDI)) as plugin:
        await node.served(OTHER)
        node.configure(last=CDI)
        plugin.signal(signal.SIGHUP)
        await node.removed(OTHER)
        await node.served(LAST)
    assert node.specs().keys() == {PHONE, SIDECAR, LAST}


async def test_spec_of_a_resource_that_no_longer_uses_cdi_stays(node: Node) -> None:
    """Containers that run have its names, until the resource leaves the configuration."""
    async with node.serve(node.configure(phone=CDI, sidecar=CDI)):
        await node.served(PHONE, SIDECAR)
    async with node.serve(node.configure(phone=MOUNTS, sidecar=MOUNTS)):
        await node.served(PHONE, SIDECAR)
    assert node.specs().keys() == {PHONE, SIDECAR}
    async with node.serve(node.configure(phone=MOUNTS)):
        await node.removed(SIDECAR)
    assert node.specs().keys() == {PHONE}


async def test_spec_that_another_version_of_the_plugin_serves_stays(node: Node) -> None:
    """A rolling update with maxSurge: the earlier version restarts, and its configuration lacks a resource."""
    async with node.serve(node.configure(phone=CDI, sidecar=CDI)):
        await node.served(PHONE, SIDECAR)
    earlier = node.configure(phone=CDI, other=CDI)
    sockets = PluginDirectory(node.kubelet.directory, SIDECAR)
    command = (sys.executable, "-c", LISTEN, os.path.join(node.kubelet.directory, sockets.next_endpoint(0.0)))
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    await until(lambda: bool(sockets.other_plugins()))
    async with node.serve(earlier):
        await node.recorded(PHONE, SIDECAR, OTHER)
        await node.served(OTHER)
    await process.communicate(b"")
    assert node.specs().keys() == {PHONE, SIDECAR, OTHER}
    async with node.serve(earlier):
        await node.removed(SIDECAR)
    assert node.specs().keys() == {PHONE, OTHER}
