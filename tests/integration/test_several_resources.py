"""Several resources in one process: each with its own nodes and registration, and never a node for two."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.testing import Container, Kubelet, Pod
from tests.support import Nodes, Serve

if TYPE_CHECKING:
    from pathlib import Path

PHONE, SIDECAR = "aosp.io/phone", "aosp.io/sidecar"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(tmp_path / "dev")
    made.make(*range(6))
    for number in range(2):
        (made.directory / f"sidecar_binder{number}").touch()
    return made


def write(nodes: Nodes, *, prefix: str = "sidecar_binder") -> Path:
    """Write the configuration of two resources."""
    file = nodes.directory.parent / "config.yaml"
    file.write_text(
        f"version: v1\nresources:\n"
        f"  - {{resource_name: {PHONE}, sets: {{size: 3}}}}\n"
        f"  - {{resource_name: {SIDECAR}, device_prefix: {prefix}, visible_devices_env: SIDECARS}}\n"
    )
    return file


async def advertised(kubelet: Kubelet, phones: int, sidecars: int) -> None:
    expected = {PHONE: phones, SIDECAR: sidecars}
    await kubelet.wait_for(
        lambda k: all(k.resource(name).connected and k.resource(name).allocatable == n for name, n in expected.items())
    )


async def test_each_resource_has_its_own_nodes_and_its_own_registration(nodes: Nodes, kubelet_dir: str) -> None:
    """A pod may ask for both, and one container gets what both give."""
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(write(nodes))):
        await advertised(kubelet, 2, 2)
        assert sorted(one.resource_name for one in kubelet.registrations) == [PHONE, SIDECAR]
        assert len({one.endpoint for one in kubelet.registrations}) == 2
        admitted = await kubelet.admit(Pod("phone", [Container("main", {PHONE: 1, SIDECAR: 1})]))
        main = admitted.containers["main"]
        assert main.envs["BINDER_VISIBLE_DEVICES"] == "aosp_binder0,aosp_binder1,aosp_binder2"
        assert main.envs["SIDECARS"] == "sidecar_binder0"
        paths = {device.container_path for device in main.devices}
        assert paths == {*(f"/dev/aosp_binder{number}" for number in range(3)), "/dev/sidecar_binder0"}


async def test_every_resource_comes_back_after_a_restart_of_the_kubelet(nodes: Nodes, kubelet_dir: str) -> None:
    """They share one watch of the directory."""
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(write(nodes))):
        await advertised(kubelet, 2, 2)
        await kubelet.restart()
        await advertised(kubelet, 2, 2)
        nodes.make(6, 7, 8)
        (nodes.directory / "sidecar_binder1").unlink()
        await advertised(kubelet, 3, 1)


async def test_the_end_removes_every_socket(nodes: Nodes, kubelet_dir: str) -> None:
    """And the exit code is 0."""
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(write(nodes))) as serve:
        await advertised(kubelet, 2, 2)
        serve.signal(signal.SIGTERM)
        assert await serve.finish() == 0
        assert [name for name in os.listdir(kubelet_dir) if name.startswith("aosp-")] == []


async def test_a_node_of_two_resources_through_a_link_is_an_error_that_names_it(nodes: Nodes, kubelet_dir: str) -> None:
    """Prefixes and directories differ; the file behind both names is the same."""
    (nodes.directory / "sidecar_binder7").symlink_to("aosp_binder4")
    async with Serve(nodes, kubelet_dir, "--config", str(write(nodes))) as serve:
        line = await serve.logged("would be both")
        assert "sidecar_binder7, which is" in line
        assert "aosp_binder4 of aosp.io/phone" in line
        assert f"{PHONE}'s and {SIDECAR}'s" in line
        assert await serve.finish() == 2


async def test_a_reload_that_would_give_a_node_to_two_is_refused(nodes: Nodes, kubelet_dir: str) -> None:
    """What is served goes on, and nothing was changed by trying."""
    file = write(nodes)
    (nodes.directory / "other_binder0").symlink_to("aosp_binder4")
    async with Kubelet(kubelet_dir) as kubelet, Serve(nodes, kubelet_dir, "--config", str(file)) as serve:
        await advertised(kubelet, 2, 2)
        write(nodes, prefix="other_binder")
        serve.signal(signal.SIGHUP)
        assert "other_binder0, which is" in await serve.logged("refused")
        write(nodes, prefix="aosp_binder1")
        serve.signal(signal.SIGHUP)
        assert "both match" in await serve.logged("refused")
        (nodes.directory / "sidecar_binder1").unlink()
        await advertised(kubelet, 2, 1)
        assert len(kubelet.registrations) == 2


async def test_a_refused_resource_ends_the_process_and_says_which(nodes: Nodes, kubelet_dir: str) -> None:
    """Half a node's phones would be worse than a clear error."""
    async with Kubelet(kubelet_dir) as kubelet:
        kubelet.faults.refuse_register = "the ResourceName aosp.io/x is invalid"
        async with Serve(nodes, kubelet_dir, "--config", str(write(nodes))) as serve:
            assert await serve.finish() == 1
            assert "refuses aosp.io/" in "".join(serve.log), serve.log
