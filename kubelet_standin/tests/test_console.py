"""``kubelet-standin``: the stand-in kubelet as a command."""

import asyncio
import datetime
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from kubelet_standin import ContainerAllocation, Event, Faults, Kubelet, Mount, console
from kubelet_standin.api import podresources_pb2, podresources_pb2_grpc
from kubelet_standin.tests.stub import OTHER, PATIENCE, PRE_STARTS, Plugins, R, fail, register, register_error

COMMAND = [sys.executable, "-m", "kubelet_standin"]


class Process:
    """``kubelet-standin`` as a process."""

    def __init__(self, directory: str, *flags: str, **options: Any) -> None:
        self.command = [*COMMAND, directory, *flags]
        self.options = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE} | options

    async def __aenter__(self) -> Self:
        """Start the process, and wait until the kubelet listens."""
        self.process = await asyncio.create_subprocess_exec(*self.command, **self.options)
        await self.event("kubelet-started")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until the process exits with 0, or stop it after a failure."""
        if kind is not None:
            self.process.kill()
        assert await asyncio.wait_for(self.process.wait(), PATIENCE) == 0 or kind is not None

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_process_prints_events_and_executes_commands(
    kubelet_dir: str, plugins: Plugins, number: signal.Signals
) -> None:
    """Standard input is a pipe. The kubelet keeps running at its end, until a signal."""
    async with Process(kubelet_dir) as process:
        plugin = await plugins.start("a", "b")
        client = Kubelet(kubelet_dir)  # not started: only its path is used
        await register(client, plugin.name)
        assert (await process.event("plugin-registered"))["endpoint"] == plugin.name
        process.send(f"wait {R} 2", f"admit game {R}=1")
        allocation = await process.event("container-allocated")
        assert (allocation["pod"], allocation["device_ids"]) == ("game", {R: plugin.allocated[0]})
        assert process.process.stdin is not None
        process.process.stdin.close()
        await register_error(client, plugin.name)  # connected already
        await process.event("plugin-refused")
        process.process.send_signal(number)
        await process.event("kubelet-stopped")


def test_process_executes_a_script(kubelet_dir: str, tmp_path: Path) -> None:
    """Standard input is a file. ``quit`` ends the process."""
    script = tmp_path / "script"
    script.write_text("# a comment\n\nrestart\nquit\n")
    with script.open() as stdin:
        done = subprocess.run(  # noqa: S603 - our own command
            [*COMMAND, kubelet_dir, "--kubelet", "1.36"],
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["kubelet-started", "kubelet-stopped"] * 2
    assert (events[0]["directory"], events[0]["version"]) == (kubelet_dir, "1.36")


async def test_process_serves_podresources_at_a_socket(kubelet_dir: str) -> None:
    async with Process(kubelet_dir, "--pod-resources", f"{kubelet_dir}/pods.sock") as process:
        async with grpc.aio.insecure_channel(f"unix:{kubelet_dir}/pods.sock") as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            request = podresources_pb2.ListPodResourcesRequest()
            assert not (await stub.List(request, wait_for_ready=True)).pod_resources
        process.send("quit")


async def test_process_stops_when_its_output_is_closed(kubelet_dir: str) -> None:
    async with Process(kubelet_dir, stderr=asyncio.subprocess.PIPE) as process:
        process.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)  # the event loop closes the pipe in its next iteration
        process.send(f"devices {R}")
        assert process.process.stderr is not None
        assert await asyncio.wait_for(process.process.stderr.read(), PATIENCE) == b""


async def test_process_refuses_a_directory_in_use(kubelet: Kubelet) -> None:
    """A start would remove the sockets of the kubelet that listens in the directory."""
    process = await asyncio.create_subprocess_exec(*COMMAND, kubelet.directory, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert error.decode() == f"kubelet-standin: {kubelet.socket_path}: a kubelet already listens\n"
    assert process.returncode == 1
    assert kubelet.running


# -- commands -------------------------------------------------------------------------------------------------------


class Recorder:
    """A console whose events a test can read."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.events: list[Event] = []
        self.console = console.Console(kubelet, self.events.append, asyncio.Event())

    async def __call__(self, line: str) -> list[tuple[str, dict[str, object]]]:
        """Execute a command, and return the events that it reports itself."""
        self.events.clear()
        await self.console.execute(line)
        return [(event.name, dict(event.fields)) for event in self.events]


@pytest.fixture
def execute(kubelet: Kubelet) -> Recorder:
    return Recorder(kubelet)


async def test_pod_is_admitted_run_and_removed(kubelet: Kubelet, plugins: Plugins, execute: Recorder) -> None:
    """The kubelet reports a rejected pod and a container that cannot start; the command reports no error."""
    plugin = await plugins.serve(kubelet, "a", options=PRE_STARTS)
    other = await plugins.serve(kubelet, "x", resource=OTHER)
    assert await execute(f"admit game {R}=1 {OTHER}=1") == []
    assert await execute("run game") == []
    assert (plugin.allocated, other.allocated, plugin.pre_started) == ([["a"]], [["x"]], [["a"]])
    plugin.hooks["PreStartContainer"] = fail("not ready")
    assert await execute("run game") == []
    assert await execute(f"admit more {R}=1") == []
    assert await execute("remove game") == []
    assert kubelet.allocated(R) == {}


async def test_kubelet_and_streams_are_broken(kubelet: Kubelet, plugins: Plugins, execute: Recorder) -> None:
    await plugins.serve(kubelet, "a")
    assert await execute(f"wait {R} 1") == [("allocatable", {"resource": R, "allocatable": 1})]
    assert await execute(f"drop {R}") == []
    assert await execute(f"devices {R}") == [("devices", {"resource": R, "devices": {"a": "Unhealthy"}})]
    ((name, fields),) = await execute(f"wait {R} 1 0.01")
    assert name == "error"
    assert str(fields["message"]).startswith("condition not met within 0.01 s")
    assert await execute("stop") == []
    assert await execute(f"admit game {R}=1") == [("error", {"message": "the kubelet is stopped"})]
    assert await execute("start") == []
    assert kubelet.resource(R).known
    assert await execute("restart lose-checkpoint") == []
    assert not kubelet.resource(R).known


async def test_faults_are_injected_and_repaired(kubelet: Kubelet, execute: Recorder) -> None:
    for line in ('break refuse-register "not today"', "break slow-register 2.5", "break hang-register"):
        assert await execute(line) == []
    assert kubelet.faults == Faults(refuse_register="not today", slow_register=2.5, hang_register=True)
    hanging = asyncio.create_task(kubelet.faults.delay_register())
    await asyncio.wait([hanging], timeout=0)
    assert await execute("repair") == []
    assert kubelet.faults == Faults()
    await hanging


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "unknown command nonsense; the commands are admit, run"),
        ("admit game", "usage: admit POD RESOURCE=COUNT ..."),
        ("admit game a.b/c=-1", "usage: admit POD RESOURCE=COUNT ..."),
        ("run absent", "no pod absent"),
        ("restart fast", "unknown option fast; the only one is lose-checkpoint"),
        ("break nothing", "unknown fault nothing; the faults are refuse-register, hang-register"),
        ("break refuse-register 'open", "No closing quotation"),
    ],
)
async def test_invalid_command_is_reported(execute: Recorder, line: str, message: str) -> None:
    ((name, fields),) = await execute(line)
    assert name == "error"
    assert str(fields["message"]).startswith(message)


# -- output ---------------------------------------------------------------------------------------------------------

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 6789, tzinfo=datetime.UTC)
ALLOCATION = ContainerAllocation(
    name="main",
    device_ids={R: ("a", "b")},
    envs={"GPU": "a b"},
    mounts=(Mount("/c", "/h", read_only=True),),
    devices=(),
    annotations={},
    cdi_devices=(),
)
EVENT = Event("container-allocated", {"pod": "a pod", "allocation": ALLOCATION})


def test_line_shows_what_a_container_gets() -> None:
    """The fields of the allocation are at the top level, its name as that of the container."""
    line = json.loads(console.format_event(EVENT, NOW))
    names = {"time", "event", "pod", "container", *vars(ALLOCATION)} - {"name"}
    assert (line["time"], line["container"], line.keys()) == ("2026-01-02T03:04:05.006+00:00", "main", names)
    assert (line["device_ids"], line["cdi_devices"]) == ({R: ["a", "b"]}, [])
