"""``serve``: a device plugin as a whole program, and its errors."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from aosp_plugin.framework import ListedDevices, serve
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.service import logs, process
from kubelet_standin import Kubelet
from tests.support import PATIENCE, answered, free_port, listed, sockets

PROGRAM = """
import sys
from aosp_plugin.framework import ListedDevices, serve

a = ListedDevices("example.com/a", lambda: ["/dev/a0", "/dev/a1"], directories=())
b = ListedDevices("example.com/b", lambda: ["/dev/b0"], directories=())
serve(a, b, kubelet_dir=sys.argv[1], listen=sys.argv[2], log_format="json")
"""


async def test_several_backends_share_a_process_and_log_their_events(kubelet_dir: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PROGRAM)
    port = free_port()
    async with Kubelet(kubelet_dir) as kubelet:
        command = (sys.executable, str(tmp_path / "plugin.py"), kubelet_dir, f"127.0.0.1:{port}")
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        await listed(kubelet, 2, "example.com/a")
        await listed(kubelet, 1, "example.com/b")
        await answered(port, "/readyz", "ok: ")
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0
    assert sockets(kubelet_dir) == []
    events = [json.loads(line) for line in log.splitlines()]
    assert {event["resource"] for event in events if event["message"] == "registered"} == {
        "example.com/a",
        "example.com/b",
    }


class Unclosable(ListedDevices):
    """A backend whose end fails."""

    def close(self) -> None:
        """Fail."""
        raise BackendError("the bus is still busy")


def backend(
    name: str, list_devices: Callable[[], Iterable[str]], kind: type[ListedDevices] = ListedDevices
) -> ListedDevices:
    return kind(f"example.com/{name}", list_devices, directories=())


def fail() -> list[str]:
    raise BackendError("the bus does not answer")


def broken() -> list[str]:
    raise KeyError("bug")


@pytest.fixture
def run(kubelet_dir: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that serves backends in this process until one fails, which is to be exit code 1."""
    monkeypatch.setattr(process, "stop_on_signals", lambda *_: None)
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    monkeypatch.setattr(logs, "replace_stderr", lambda: None)

    def run(*backends: ListedDevices) -> None:
        with pytest.raises(SystemExit, match="1"):
            serve(*backends, kubelet_dir=kubelet_dir)

    return run


def test_unexpected_error_keeps_its_traceback(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    run(backend("broken", broken))
    assert caplog.messages[-1] == "task failed, exiting"
    assert caplog.text.endswith("KeyError: 'bug'\n")


def test_each_error_is_reported(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of one plugin ends the others; what happens meanwhile is in the log."""
    run(backend("b", list), backend("fail", fail), backend("unclosable", list, Unclosable))
    assert ": the bus does not answer\n" in capsys.readouterr().err
    failed = [vars(record)["error"] for record in caplog.records if record.message == "close failed"]
    assert failed == ["the bus is still busy"]
