"""``serve``: a device plugin as a whole program."""

import asyncio
import json
import sys
from pathlib import Path

from kubelet_standin import Kubelet
from tests.support import PATIENCE, listed, sockets

PROGRAM = """
import sys
from aosp_plugin.framework import ListedDevices, serve
from aosp_plugin.framework.errors import BackendError

def fail():
    raise BackendError("the bus does not answer")

def broken():
    raise KeyError("bug")

class Unclosable(ListedDevices):
    def close(self):
        raise BackendError("the bus is still busy")

LISTS = {"a": lambda: ["/dev/a0", "/dev/a1"], "b": lambda: ["/dev/b0"], "fail": fail, "broken": broken}
CLASSES = {"unclosable": Unclosable}
backends = [
    CLASSES.get(name, ListedDevices)(f"example.com/{name}", LISTS.get(name, list), directories=())
    for name in sys.argv[2:]
]
listen = sys.argv[1].partition("@")[2]
serve(
    *backends,
    kubelet_dir=sys.argv[1].partition("@")[0],
    listen=listen,
    allowed_hosts=["Plugin.example.svc"],
    log_format="json",
)
"""


async def start(directory: Path, kubelet_dir: str, *names: str) -> asyncio.subprocess.Process:
    """Run a program that serves resources with these names."""
    path = directory / "plugin.py"
    path.write_text(PROGRAM)
    return await asyncio.create_subprocess_exec(
        sys.executable, str(path), kubelet_dir, *names, stderr=asyncio.subprocess.PIPE
    )


async def finish(process: asyncio.subprocess.Process) -> list[str]:
    """Wait until the program ends, and return the lines of its standard error."""
    _, output = await asyncio.wait_for(process.communicate(), PATIENCE)
    return output.decode().splitlines()


async def test_several_backends_share_a_process_and_log_their_events(kubelet_dir: str, tmp_path: Path) -> None:
    async with Kubelet(kubelet_dir) as kubelet:
        process = await start(tmp_path, kubelet_dir, "a", "b")
        await listed(kubelet, 2, "example.com/a")
        await listed(kubelet, 1, "example.com/b")
        assert process.stderr is not None
        events: list[dict[str, str]] = []
        while [event["message"] for event in events].count("registered") < 2:
            events.append(json.loads(await asyncio.wait_for(process.stderr.readline(), PATIENCE)))
        process.terminate()
        await finish(process)
    assert process.returncode == 0
    assert sockets(kubelet_dir) == []
    assert {(event["message"], event["resource"]) for event in events} >= {
        ("registered", "example.com/a"),
        ("registered", "example.com/b"),
    }


async def test_unexpected_error_keeps_its_traceback(kubelet_dir: str, tmp_path: Path) -> None:
    process = await start(tmp_path, kubelet_dir, "broken")
    event = json.loads((await finish(process))[-1])
    assert event["message"] == "task failed, exiting"
    assert event["traceback"].endswith("KeyError: 'bug'")
    assert process.returncode == 1


async def test_each_error_is_reported(kubelet_dir: str, tmp_path: Path) -> None:
    """The end of one plugin ends the others; what happens meanwhile is in the log."""
    process = await start(tmp_path, kubelet_dir, "b", "fail", "unclosable")
    lines = await finish(process)
    assert "plugin.py: the bus does not answer" in lines
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert ("close failed", "the bus is still busy") in [(event["message"], event.get("error")) for event in events]
    assert process.returncode == 1
