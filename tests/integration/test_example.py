"""The example of a plugin for another device works as it stands in the documentation."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aosp_plugin.testing import Container, Kubelet, Pod

if TYPE_CHECKING:
    from tests.support import Nodes

EXAMPLE = Path(__file__).parents[2] / "examples" / "serial_ports.py"


async def test_the_example_hands_out_its_devices(nodes: Nodes, kubelet_dir: str, tmp_path: Path) -> None:
    """The example, with /dev and the kubelet's directory moved, registers, follows hotplug and hands out nodes."""
    moved = tmp_path / "serial_ports.py"
    text = EXAMPLE.read_text().replace("/dev/ttyUSB*", f"{nodes.directory}/ttyUSB*")
    settings = f'directories=["{nodes.directory}"], kubelet_dir="{kubelet_dir}"'
    moved.write_text(text.replace('socket_name="serial"', f'socket_name="serial", {settings}'))
    (nodes.directory / "ttyUSB0").touch()
    async with Kubelet(kubelet_dir) as kubelet:
        process = await asyncio.create_subprocess_exec(sys.executable, str(moved))
        try:
            await kubelet.wait_for(lambda k: k.resource("example.com/serial").allocatable == 1)
            (nodes.directory / "ttyUSB1").touch()
            await kubelet.wait_for(lambda k: k.resource("example.com/serial").allocatable == 2)
            admitted = await kubelet.admit(Pod("modem", [Container("main", {"example.com/serial": 2})]))
            paths = sorted(device.container_path for device in admitted.containers["main"].devices)
            assert paths == [f"{nodes.directory}/ttyUSB0", f"{nodes.directory}/ttyUSB1"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == 0
            assert not [name for name in os.listdir(kubelet_dir) if name.startswith("serial")]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def test_the_example_is_short() -> None:
    """The example stays at about 15 lines, which is what the documentation promises."""
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_example_lists_devices() -> None:
    """The example's function is what the documentation says: it lists paths."""
    spec = importlib.util.spec_from_file_location("serial_ports", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert all(re.fullmatch(r"/dev/ttyUSB.*", path) for path in module.list_devices())
