"""``aosp-plugin kubelet``: the stand-in kubelet as a command."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest

from aosp_plugin.testing import ContainerAllocation, DeviceSpec, Event, Kubelet, Mount, console
from tests.support import PATIENCE
from tests.testing.stub import PRE_STARTS, Plugins, R, fail, new_kubelet, register_error, register_ignoring_errors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Clock

COMMAND = [sys.executable, "-m", "aosp_plugin", "kubelet"]


class Process:
    """``aosp-plugin kubelet --json`` as a process."""

    def __init__(self, directory: str, *flags: str, **options: Any) -> None:
        self.command = [*COMMAND, directory, "--json", *flags]
        self.options = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE} | options

    async def __aenter__(self) -> Self:
        """Start the process, and wait until the kubelet listens."""
        self.process = await asyncio.create_subprocess_exec(*self.command, **self.options)
        await self.event("kubelet-started")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the process."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await asyncio.wait_for(self.process.wait(), PATIENCE)

    def send(self, *commands: str) -> None:
        """Send commands."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{command}\n" for command in commands).encode())

    async def event(self, name: str) -> dict[str, Any]:
        """Wait for an event with this name, and return its fields."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stdout.readline():
                event: dict[str, Any] = json.loads(line)
                if event["event"] == name:
                    return event
        raise AssertionError(f"the process exited without the event {name}")


async def test_process_prints_events_and_executes_commands(kubelet_dir: str, plugins: Plugins) -> None:
    """Standard input is a pipe. The kubelet keeps running at its end, until SIGTERM."""
    async with Process(kubelet_dir, "--pod-resources", f"{kubelet_dir}/pods.sock") as process:
        plugin = await plugins.start("a", "b")
        client = Kubelet(kubelet_dir)  # not started: only its path is used
        await register_ignoring_errors(client, plugin.name)
        assert (await process.event("plugin-registered"))["endpoint"] == plugin.name
        process.send(f"wait {R} 2", f"admit game {R}=1")
        allocation = await process.event("container-allocated")
        assert allocation["pod"] == "game"
        assert allocation["device_ids"] == {R: plugin.allocated[0]}
        assert allocation["envs"] == {R: plugin.allocated[0][0]}
        assert "pods.sock" in os.listdir(kubelet_dir)
        assert process.process.stdin is not None
        process.process.stdin.close()
        await register_ignoring_errors(client, plugin.name)  # connected already
        await process.event("plugin-refused")
        process.process.send_signal(signal.SIGTERM)
        await process.event("kubelet-stopped")
        assert await asyncio.wait_for(process.process.wait(), PATIENCE) == 0


@pytest.mark.parametrize("number", [None, signal.SIGINT])
async def test_process_exits_with_0_on_quit_and_on_sigint(kubelet_dir: str, number: signal.Signals | None) -> None:
    async with Process(kubelet_dir) as process:
        if number is None:
            process.send("quit")
        else:
            process.process.send_signal(number)
        await process.event("kubelet-stopped")
        assert await asyncio.wait_for(process.process.wait(), PATIENCE) == 0


def test_process_executes_a_script(kubelet_dir: str, tmp_path: Path) -> None:
    """Standard input is a file, and standard output is text."""
    script = tmp_path / "script"
    script.write_text("# a comment\n\nbreak slow-register 0.5\nrestart\nquit\n")
    with script.open() as stdin:
        done = subprocess.run(  # noqa: S603 - our own command
            [*COMMAND, kubelet_dir, "--behaviour", "buggy"],
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
    assert (done.returncode, done.stderr) == (0, "")
    started = f"kubelet-started directory={kubelet_dir} behaviour=buggy"
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert lines == [started, "fault fault=slow-register value=0.5", "kubelet-stopped", started, "kubelet-stopped"]


async def test_process_stops_when_its_output_is_closed(kubelet_dir: str) -> None:
    async with Process(kubelet_dir, stderr=asyncio.subprocess.PIPE) as process:
        process.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        process.send("status", "status")
        assert await asyncio.wait_for(process.process.wait(), PATIENCE) == 0
        assert process.process.stderr is not None
        assert await process.process.stderr.read() == b""


@pytest.mark.parametrize("live", [True, False])
async def test_process_refuses_an_unusable_directory(kubelet_dir: str, live: bool) -> None:  # noqa: FBT001
    """A start would remove the sockets of a kubelet that listens in the directory."""
    directory = kubelet_dir if live else "/tmp/" + "x" * 100
    async with Kubelet(kubelet_dir) as kubelet:
        process = await asyncio.create_subprocess_exec(*COMMAND, directory, stderr=asyncio.subprocess.PIPE)
        _, error = await process.communicate()
        path = f"{directory}/kubelet.sock"
        text = f"a kubelet already listens on {path}" if live else f"{path} is longer than 107 bytes"
        assert error.decode().startswith(f"aosp-plugin: {text}")
        assert error.count(b"\n") == 1
        assert process.returncode == 1
        assert kubelet.running


# -- commands -------------------------------------------------------------------------------------------------------


class Recorder:
    """A console whose events a test can read."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.events: list[Event] = []
        self.console = console.Console(kubelet, self.events.append)

    async def __call__(self, line: str) -> list[tuple[str, dict[str, object]]]:
        """Execute a command, and return the events that it reports itself."""
        self.events.clear()
        await self.console.execute(line)
        return [(event.name, dict(event.fields)) for event in self.events]


@pytest.fixture
def execute(kubelet: Kubelet) -> Recorder:
    return Recorder(kubelet)


@new_kubelet
async def test_pod_is_admitted_run_and_removed(kubelet: Kubelet, plugins: Plugins, execute: Recorder) -> None:
    """A container that cannot start is reported by the kubelet's event, not as an error of the command."""
    plugin = await plugins.serve(kubelet, "a", "b", options=PRE_STARTS)
    assert await execute(f"admit game one:{R}=1 two:{R}=1") == []
    assert await execute("run game") == []
    assert len(plugin.pre_started) == 2
    plugin.hooks["PreStartContainer"] = fail("not ready")
    assert await execute("run game") == []
    devices = await execute(f"devices {R}")
    assert [event for event, _ in devices] == ["device", "device"]
    assert {fields["container"] for _, fields in devices} == {"one", "two"}
    assert await execute(f"admit more {R}=1") == []  # rejected
    status = await execute("status")
    assert status[0] == ("status", {"running": True, "behaviour": "new", "registrations": 1})
    counts = {"capacity": 2, "allocatable": 2, "connected": True, "streams": 1}
    assert status[1] == ("resource", {"resource": R, **counts})
    assert [fields["pod"] for event, fields in status if event == "pod"] == ["game"]
    assert await execute("remove game") == []
    assert kubelet.allocated(R) == {}


@new_kubelet
async def test_kubelet_is_stopped_started_and_restarted(kubelet: Kubelet, plugins: Plugins, execute: Recorder) -> None:
    await plugins.serve(kubelet, "a")
    assert await execute("stop") == []
    assert not kubelet.running
    assert await execute(f"admit game {R}=1") == [("error", {"message": "the kubelet is stopped"})]
    assert await execute("start") == []
    assert kubelet.resource(R).known
    assert await execute("restart lose-checkpoint") == []
    assert not kubelet.resource(R).known


@new_kubelet
async def test_streams_are_dropped(kubelet: Kubelet, plugins: Plugins, execute: Recorder) -> None:
    await plugins.serve(kubelet, "a")
    assert await execute(f"wait {R} 1") == [("allocatable", {"resource": R, "allocatable": 1})]
    assert await execute(f"drop {R}") == []
    assert kubelet.resource(R).streams == 0
    text = f"{R} has 0 allocatable devices after 0.01 s"
    assert await execute(f"wait {R} 1 0.01") == [("error", {"message": text})]


@new_kubelet
async def test_faults_are_injected_and_repaired(kubelet: Kubelet, execute: Recorder) -> None:
    assert await execute('break refuse-register "not today"') == [
        ("fault", {"fault": "refuse-register", "value": "not today"})
    ]
    _code, text = await register_error(kubelet, "a.sock")
    assert text == "not today"
    assert await execute("break slow-register 2.5") == [("fault", {"fault": "slow-register", "value": 2.5})]
    assert await execute("break hang-register") == [("fault", {"fault": "hang-register", "value": True})]
    assert await execute("repair hang-register") == [("fault", {"fault": "hang-register", "value": False})]
    values = {fields["fault"]: fields["value"] for _, fields in await execute("break")}
    assert values == {
        "refuse-register": "not today",
        "hang-register": False,
        "slow-register": 2.5,
        "never-open-stream": False,
        "garbage-register": False,
        "keep-sockets": False,
    }
    await execute("repair")
    assert kubelet.faults == type(kubelet.faults)()


@new_kubelet
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "unknown command nonsense; try help"),
        ("admit game", "usage: admit POD [CONTAINER:]RESOURCE=COUNT ..."),
        ("admit game 1", "not [CONTAINER:]RESOURCE=COUNT: 1"),
        ("admit game a.b/c=x", "the count is not a number: x"),
        ("status now", "usage: status"),
        ("run absent", "no pod absent"),
        ("remove absent", "no pod absent"),
        ("devices absent", "no resource absent"),
        ("restart fast", "unknown option fast; the only one is lose-checkpoint"),
        ("start", "the kubelet already runs"),
        ("wait a.b/c many", "the count is not a number: many"),
        (
            "break nothing",
            (
                "unknown fault nothing; the faults are refuse-register, hang-register, slow-register, "
                "never-open-stream, garbage-register, keep-sockets"
            ),
        ),
        ("break slow-register", "the delay is not a number: "),
        ("break keep-sockets yes", "keep-sockets has no value"),
        ("break refuse-register 'open", "No closing quotation"),
    ],
)
async def test_invalid_command_is_reported_in_one_line(execute: Recorder, line: str, message: str) -> None:
    assert await execute(line) == [("error", {"message": message.strip()})]


@new_kubelet
async def test_help_lists_every_command(execute: Recorder) -> None:
    usages = [str(fields["usage"]).split()[0] for _, fields in await execute("help")]
    assert usages == list(execute.console.commands)


# -- output ---------------------------------------------------------------------------------------------------------

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 6789, tzinfo=datetime.UTC)
ALLOCATION = ContainerAllocation(
    name="main",
    device_ids={R: ("a", "b")},
    envs={"GPU": "a b"},
    mounts=(Mount("/c", "/h", read_only=True),),
    devices=(DeviceSpec("/dev/c", "/dev/h", "rw"),),
    annotations={"k": ""},
    cdi_devices=("v/c=a",),
)


def test_text_line_shows_what_a_container_gets() -> None:
    """Values with spaces and empty values are quoted."""
    assert console.format_text(Event("container-allocated", {"pod": "p", "allocation": ALLOCATION}), NOW) == (
        f"03:04:05.006 container-allocated pod=p container=main {R}=a,b "
        'env:GPU="a b" device=/dev/h:/dev/c:rw mount=/h:/c:ro annotation:k="" cdi=v/c=a'
    )


def test_json_line_shows_what_a_container_gets() -> None:
    line = console.format_json(Event("container-allocated", {"pod": "p", "allocation": ALLOCATION}), NOW)
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.006+00:00",
        "event": "container-allocated",
        "pod": "p",
        "container": "main",
        "device_ids": {R: ["a", "b"]},
        "envs": {"GPU": "a b"},
        "mounts": [{"container_path": "/c", "host_path": "/h", "read_only": True}],
        "devices": [{"container_path": "/dev/c", "host_path": "/dev/h", "permissions": "rw"}],
        "annotations": {"k": ""},
        "cdi_devices": ["v/c=a"],
    }


async def test_lost_resource_expires_without_a_command(
    kubelet_dir: str, plugins: Plugins, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "EXPIRY_INTERVAL", 0.01)
    events: asyncio.Queue[str] = asyncio.Queue()
    async with Kubelet(kubelet_dir, clock=clock, on_event=lambda event: events.put_nowait(event.name)) as kubelet:
        await plugins.serve(kubelet, "a")
        await kubelet.drop_streams()
        clock.now += 301
        expiry = asyncio.create_task(console._expire(kubelet))
        async with asyncio.timeout(PATIENCE):
            while await events.get() != "resource-forgotten":
                pass
        expiry.cancel()
