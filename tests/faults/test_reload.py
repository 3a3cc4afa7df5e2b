"""Reloads of ``aosp-plugin serve`` by SIGHUP: the process executes its program again, or nothing changes."""

import asyncio
import contextlib
import json
import operator
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from aosp_plugin.cli.status import reload
from aosp_plugin.report.document import ReloadReport
from kubelet_standin import Kubelet
from tests.faults.hanging_fs import HangingFileSystem
from tests.served_node import ServedNode
from tests.support import PATIENCE, RESOURCE, answered, fill, free_port, http_get, listed, mounted_tmpfs, sockets
from tests.systemd import Systemd

REJECTED = "configuration reload rejected, keeping the current configuration"
FOREIGN = "192.0.2.1:9478"
"""An address of no host (RFC 5737)."""


class Served(ServedNode):
    """A node with two devices, and a process."""

    def __init__(self, directory: Path, kubelet_dir: str, **options: Any) -> None:
        """``options`` are those of ``Serve``."""
        super().__init__(directory, Kubelet(kubelet_dir), port=free_port())
        self.plugin = self.process(**options)

    async def __aenter__(self) -> Self:
        """Start kubelet and process, and wait until the kubelet has the devices."""
        self.devices.add(0, 1)
        self.configure()
        await self.kubelet.start()
        await self.plugin.__aenter__()
        await self.registered()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop both."""
        await self.plugin.__aexit__()
        await self.kubelet.stop()

    async def registered(self) -> None:
        """Wait until the kubelet has both devices, and the plugin is ready."""
        await listed(self.kubelet, 2)
        await answered(self.port, "/readyz", f"ok: {RESOURCE}: ")

    @property
    def pid(self) -> int:
        """The process ID of the plugin, also if another program has started it in a namespace."""
        pid = self.plugin.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else pid

    async def status(self) -> dict[str, Any]:
        """Return the status report."""
        answer: dict[str, Any] = json.loads((await answered(self.port, "/status", ""))[1])
        return answer

    async def unregistered(self) -> None:
        """Wait until the plugin has ended its stream, on its way to the end."""
        await self.kubelet.wait_for(lambda kubelet: kubelet.resource(RESOURCE).streams == 0)

    async def reload(self) -> ReloadReport:
        """Reload the configuration, and return the outcome."""
        return await asyncio.to_thread(reload, f"http://127.0.0.1:{self.port}")

    async def rejected(self, **changes: Any) -> str:
        """Reload a configuration with other values, and return why it is rejected."""
        self.configure(**changes)
        return (await self.reload()).error

    async def check_unaffected(self) -> None:
        """Check that the kubelet still has its first stream, which reports changes, and HTTP clients their answers."""
        assert (await http_get(self.port, "/readyz"))[0] == 200
        assert (await http_get(self.port, "/status"))[0] == 200
        self.devices.add(2)
        await listed(self.kubelet, 3)
        self.devices.remove(2)
        await listed(self.kubelet, 2)
        view = self.kubelet.resource(RESOURCE)
        assert (len(self.kubelet.registrations), view.streams, view.streams_opened) == (1, 1, 1)


Starting = Callable[..., Served]


@pytest.fixture
def starting(kubelet_dir: str, tmp_path: Path) -> Starting:
    """Return a function that returns a node; its arguments are those of ``Serve``."""
    return partial(Served, tmp_path, kubelet_dir)


@pytest.fixture
async def served(starting: Starting) -> AsyncIterator[Served]:
    async with starting() as served:
        yield served


# -- configurations that cannot be served


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"listen": FOREIGN}, f"cannot listen on {FOREIGN}"),
        ({"status_listen": FOREIGN}, f"cannot listen on {FOREIGN}"),
        ({"device_dir": "/etc/hostname"}, "Not a directory: '/etc/hostname'"),
        ({"shared_devices": ["/usr"]}, "shared_devices: /usr is a directory, not a device"),
        ({"device_dir": "/nowhere"}, "cannot read the device directory /nowhere"),
        ({"kubelet_dir": "/nowhere"}, "the kubelet's plugin directory /nowhere does not exist"),
        (
            {"device_dir": None, "phones": {"count": 3, "directory": "/etc/passwd/phones"}},
            "cannot provision phones in /etc/passwd/phones: ",
        ),
        ({"resource_name": "nonsense"}, "resource_name: 'nonsense' is not allowed"),
        (
            {"resources": [{"device_dir": "/nowhere"}, {"resource_name": "a.io/b", "device_dir": "/also-nowhere"}]},
            "No such file or directory: '/nowhere'; cannot read the device directory /also-nowhere",
        ),
    ],
)
async def test_configuration_that_cannot_be_served_changes_nothing(
    served: Served, changes: dict[str, Any], error: str
) -> None:
    await served.plugin.logged("INFO registered")
    before = len(served.plugin.log)
    assert error in await served.rejected(**changes)
    assert error in await served.plugin.logged(REJECTED)
    logged = "".join(served.plugin.log[before:])
    assert "device scan failed" not in logged, "the scan of the running plugin has not failed"
    assert "devices changed" not in logged
    await served.check_unaffected()


@pytest.mark.parametrize(
    ("options", "error"),
    [("size=4k", "No space left on device"), ("ro", "Read-only file system"), (None, "Not a directory")],
)
async def test_cdi_directory_that_cannot_be_written_changes_nothing(
    served: Served, tmp_path: Path, options: str | None, error: str
) -> None:
    """It is full, read-only, or a file. A resource that requires no CDI spec does not need it."""
    directory = served.file if options is None else tmp_path / "mounted"
    if options is not None:
        directory.mkdir()
    with mounted_tmpfs(directory, options) if options else contextlib.nullcontext():
        fill(directory)
        changes = {"cdi_dir": str(directory), "device_list": ["cdi-cri"]}
        assert f"cannot update the CDI spec {directory}/aosp.io_binder.json: {error}" in await served.rejected(
            **changes
        )
        await served.check_unaffected()
        assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []
        served.configure(cdi_dir=str(directory))
        assert (await served.reload()).changed


# -- file systems that hang


@pytest.mark.parametrize(
    "key",
    ["device_dir", "kubelet_dir", "cdi_dir"],
)
async def test_directory_that_hangs_changes_nothing(
    served: Served, hanging_file_system: HangingFileSystem, key: str
) -> None:
    """The plugin serves as before while the reload waits, and rejects it after some seconds."""
    hanging_file_system.hang()
    served.configure(**{key: f"{hanging_file_system.directory}/{key}", "device_list": ["cdi-cri"]})
    served.plugin.signal(signal.SIGHUP)
    await hanging_file_system.until_waiting()
    await served.check_unaffected()
    await answered(served.port, "/status", "timed out")
    await served.check_unaffected()


async def test_reload_is_rejected_while_a_call_on_the_host_hangs(
    served: Served, hanging_file_system: HangingFileSystem
) -> None:
    """To execute the program again would wait for a thread that cannot be killed, and serve nothing until then."""
    await reload_until_scan_hangs(served, hanging_file_system)
    await served.plugin.logged("device scan is hanging")
    served.configure()
    served.plugin.signal(signal.SIGHUP)
    rejected = await served.plugin.logged("configuration reload rejected, keeping the current configuration")
    assert "a call on the host hangs, reload again when it has ended: device scan of " in rejected
    hanging_file_system.release()
    await served.plugin.logged("device scan is no longer hanging")
    served.plugin.signal(signal.SIGHUP)
    await listed(served.kubelet, 2)


async def reload_until_scan_hangs(served: Served, hanging_file_system: HangingFileSystem) -> None:
    """Reload to a directory on a file system, and return when a scan of it hangs."""
    os.mknod(f"{hanging_file_system.source}/aosp_binder7")
    served.configure(device_dir=hanging_file_system.directory)
    served.plugin.signal(signal.SIGHUP)
    await listed(served.kubelet, 1)
    hanging_file_system.hang()
    os.mknod(f"{hanging_file_system.source}/aosp_binder8")
    served.plugin.signal(signal.SIGHUP)  # rescans
    await hanging_file_system.until_waiting()


# -- another configuration is served

MODULE = (sys.executable, "-m", "aosp_plugin")
SCRIPT = (str(Path(sys.executable).parent / "aosp-plugin"),)
FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *MODULE)
"""As process 1 of a container."""


@pytest.mark.parametrize("program", [MODULE, SCRIPT, FIRST_PROCESS])
async def test_process_keeps_its_id_and_nothing_else(
    starting: Starting, kubelet_dir: str, program: Sequence[str]
) -> None:
    """The kubelet has one registration more, and a gap between two streams; metrics and log begin again."""
    async with starting(program=program) as served:
        pid, before = served.pid, await served.status()
        served.configure(replicas=2)
        os.kill(pid, signal.SIGHUP)
        await listed(served.kubelet, 4)
        await answered(served.port, "/readyz", "ok: ")
        status, (_, _, metrics) = await served.status(), await http_get(served.port, "/metrics")
        assert (served.pid, status["process"]) == (pid, before["process"])
        assert status["started"] > before["started"]
        assert status["last_reload"]["changed"]
        assert [record["message"] for record in status["log"]].count("starting") == 1
        assert f'aosp_plugin_registrations_total{{resource="{RESOURCE}",result="ok"}} 1.0' in metrics
        view = served.kubelet.resource(RESOURCE)
        assert (len(served.kubelet.registrations), view.streams, view.last_stream_end) == (2, 1, "EOF")
        assert len(sockets(kubelet_dir)) == 1
        os.kill(pid, signal.SIGTERM)
        assert await served.plugin.finish() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_signal_during_a_reload_is_handled(served: Served, number: signal.Signals) -> None:
    """The last configuration is served, or the process ends."""
    served.configure(replicas=2)
    served.plugin.signal(signal.SIGHUP)
    await served.unregistered()
    served.configure(replicas=3)
    served.plugin.signal(number)
    if number is signal.SIGHUP:
        await listed(served.kubelet, 6)
    else:
        assert await served.plugin.finish() == 0


LOADING = "import aosp_plugin.daemon.serve"
SIGNAL_AT_EVENT = """
import os, sys

def hook(event, arguments):
    if event in {"import", "os.exec"} and {"SIGNAL", os.environ.get("SINCE")} <= os.environ.keys():
        if os.environ["EVENT"] in (event, f"{event} {arguments[0]}"):
            os.kill(os.getpid(), int(os.environ.pop("SIGNAL")))

sys.addaudithook(hook)
"""
"""A sitecustomize.py. The process gets SIGNAL at the first EVENT when the variable that SINCE names exists."""


@pytest.mark.parametrize("program", [MODULE, FIRST_PROCESS])
@pytest.mark.parametrize("event", ["os.exec", LOADING])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_between_two_programs_of_the_process_is_handled_by_the_second(
    starting: Starting, kubelet_dir: str, tmp_path: Path, program: Sequence[str], event: str, number: signal.Signals
) -> None:
    """It comes when the first has ended, or while the second loads its modules."""
    (tmp_path / "sitecustomize.py").write_text(SIGNAL_AT_EVENT)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PYTHONPATH": path, "SIGNAL": str(int(number)), "EVENT": event, "SINCE": "AOSP_RELOADED"}
    async with starting(program=program, environment=environment) as served:
        pid = served.pid
        served.configure(replicas=2)
        os.kill(pid, signal.SIGHUP)
        if number is signal.SIGHUP:
            await served.plugin.logged("configuration reloaded changed=True")
            await served.plugin.logged("configuration reloaded changed=False")
            os.kill(pid, signal.SIGTERM)
        assert await served.plugin.finish() == 0
        assert sockets(kubelet_dir) == []


async def test_program_that_is_gone_is_an_error(starting: Starting, kubelet_dir: str, tmp_path: Path) -> None:
    """Whoever started the process starts it again."""
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), tmp_path)
    program, environment = (str(python), "-m", "aosp_plugin"), {"PYTHONPATH": ":".join(sys.path)}
    async with starting(program=program, environment=environment) as served:
        python.unlink()
        served.configure(replicas=2)
        served.plugin.signal(signal.SIGHUP)
        assert await served.plugin.finish() == 1
        assert f"ERROR program cannot be executed again path={python} " in served.plugin.log[-1]
        assert sockets(kubelet_dir) == []


async def test_configuration_that_fails_after_the_check_is_an_error(
    served: Served, tmp_path: Path, hanging_file_system: HangingFileSystem
) -> None:
    """Its directory disappears while the process stops, which waits for a scan."""
    await reload_until_scan_hangs(served, hanging_file_system)
    (tmp_path / "other").mkdir()
    served.configure(device_dir=str(tmp_path / "other"))
    served.plugin.signal(signal.SIGHUP)
    await served.unregistered()
    (tmp_path / "other").rmdir()
    hanging_file_system.release()
    assert await served.plugin.finish() == 1
    assert f"cannot read the device directory {tmp_path}/other: " in served.plugin.log[-1]


async def test_systemd_sees_a_reload_of_a_ready_service(starting: Starting, systemd: Systemd) -> None:
    states: list[str] = []

    async def ready(times: int) -> None:
        while states.count("READY=1") < times:
            states.extend((await systemd.receive()).splitlines())

    async with asyncio.timeout(PATIENCE), starting(environment=systemd.environment) as served:
        await ready(1)
        served.configure(replicas=2)
        served.plugin.signal(signal.SIGHUP)
        await ready(2)
    names = [state.partition("=")[0] for state in states if not state.startswith("STATUS=")]
    assert names == ["READY", "RELOADING", "MONOTONIC_USEC", "READY"]


# -- what stays


def resources(pid: int) -> tuple[int, int]:
    """Return the number of descriptors and threads of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


async def test_reloads_leave_no_descriptor_and_no_thread(served: Served) -> None:
    """Neither those that are accepted nor those that are rejected."""

    async def reloads(number: int) -> None:
        served.configure(replicas=number + 2)
        served.plugin.signal(signal.SIGHUP)
        await listed(served.kubelet, 2 * (number + 2))
        await answered(served.port, "/readyz", "ok: ")
        await served.rejected(status_listen=FOREIGN, missing_device_ttl=60)
        await served.rejected(device_dir="/nowhere")

    await reloads(0)
    before = resources(served.pid)
    for number in range(1, 4):
        await reloads(number)
    async with asyncio.timeout(PATIENCE):
        while any(map(operator.gt, resources(served.pid), before)):  # some threads and connections end a moment later
            await http_get(served.port, "/healthz")
