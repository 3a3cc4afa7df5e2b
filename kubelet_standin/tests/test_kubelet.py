"""The stand-in kubelet on real sockets: start and stop, Register, ListAndWatch, lost plugins, faults."""

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Callable

import grpc
import pytest

from kubelet_standin import AdmissionError, Container, Event, Kubelet, Pod
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin.checkpoint import Checkpoint, decode
from kubelet_standin.deviceplugin.directory import PluginDirectory
from kubelet_standin.deviceplugin.endpoint import Endpoint
from kubelet_standin.tests.stub import (
    OTHER,
    PATIENCE,
    Clock,
    Plugins,
    R,
    buggy_kubelet,
    fail,
    healthy,
    hold,
    register,
    register_error,
)

CANCELED = "rpc error: code = Canceled desc = context canceled"


def counts(kubelet: Kubelet, resource: str = R) -> tuple[int, int]:
    view = kubelet.resource(resource)
    return view.capacity, view.allocatable


def has(capacity: int, allocatable: int) -> Callable[[Kubelet], bool]:
    return lambda kubelet: kubelet.resource(R).known and counts(kubelet) == (capacity, allocatable)


def saved(kubelet: Kubelet) -> Checkpoint:
    with open(kubelet.checkpoint_path, "rb") as file:
        return decode(file.read())


# -- start and stop -------------------------------------------------------------------------------------------------


async def test_start_creates_the_directory_and_replaces_a_stale_socket(kubelet_dir: str) -> None:
    directory = f"{kubelet_dir}/new"
    for _ in range(2):
        async with Kubelet(directory) as kubelet:
            assert stat.S_IMODE(os.stat(directory).st_mode) == 0o750
            assert kubelet.socket_path == f"{directory}/kubelet.sock"
            assert kubelet.checkpoint_path == f"{directory}/kubelet_internal_checkpoint"
            code, _text = await register_error(kubelet, "x", version="v2")
            assert code is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize("garbage", [False, True])
async def test_stopped_kubelet_leaves_a_socket_that_refuses_connections(kubelet_dir: str, garbage: bool) -> None:  # noqa: FBT001
    """The file does not change, so no file event reports the stop."""
    kubelet = Kubelet(kubelet_dir)
    kubelet.faults.garbage_register = garbage
    await kubelet.start()
    inode = os.stat(kubelet.socket_path).st_ino
    await kubelet.stop()
    assert os.stat(kubelet.socket_path).st_ino == inode
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(kubelet.socket_path)


async def test_directories_may_have_any_name(kubelet_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the kubelet, and that of temporary files: in the address of a socket, %41 would be A."""
    directory = f"{kubelet_dir}/%41 b"
    os.mkdir(directory)
    monkeypatch.setattr(tempfile, "tempdir", directory)
    plugins = Plugins(directory)
    async with Kubelet(directory) as kubelet:
        await plugins.serve(kubelet, "a", name="%41.sock")
        assert kubelet.resource(R).allocatable == 1
    await plugins.stop()


async def test_start_that_fails_leaves_no_connection(
    kubelet_dir: str, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plugins in the checkpoint. The kubelet can be started afterwards."""
    async with Kubelet(kubelet_dir) as kubelet:
        await plugins.serve(kubelet, "a")
    closed: list[str] = []

    async def close(endpoint: Endpoint) -> None:
        closed.append(endpoint.resource)
        await endpoint._channel.close(None)

    monkeypatch.setattr(Endpoint, "close", close)
    os.unlink(kubelet.socket_path)
    os.mkdir(kubelet.socket_path)
    with pytest.raises(RuntimeError, match="Failed to bind"):
        await kubelet.start()
    assert (closed, kubelet.running) == ([R], False)
    os.rmdir(kubelet.socket_path)
    async with kubelet:
        assert kubelet.resource(R).known


async def test_stopped_kubelet_has_no_resources_and_admits_no_pods(kubelet_dir: str) -> None:
    """A stop is idempotent, a start is not."""
    kubelet = Kubelet(kubelet_dir)
    await kubelet.start()
    with pytest.raises(RuntimeError, match="already runs"):
        await kubelet.start()
    for _ in range(2):
        await kubelet.stop()
    assert kubelet.resources == ()
    assert (kubelet.resource(R).known, kubelet.resource(R).streams) == (False, 0)
    assert "is stopped" in kubelet.describe()
    with pytest.raises(RuntimeError, match="stopped"):
        await kubelet.admit(Pod("p", [Container("c")]))


async def test_resource_is_known_without_devices_after_a_restart(kubelet: Kubelet, plugins: Plugins) -> None:
    """The stop breaks the streams. The checkpoint is read, and the plugin's socket is removed, but not dialled."""
    plugin = await plugins.serve(kubelet, "d")
    await kubelet.stop()
    await asyncio.wait_for(plugin.server.stop(60), 30)  # returns early only if no stream is open
    assert saved(kubelet).registered == {R: ("d",)}
    plugin = await plugins.start("d")
    await kubelet.start()
    assert plugin.name not in os.listdir(kubelet.directory)
    view = kubelet.resource(R)
    assert (view.known, view.capacity, view.allocatable, view.connected) == (True, 0, 0, False)
    assert plugin.streams == []
    assert len(kubelet.registrations) == 1


async def test_checkpoint_that_cannot_be_written_is_logged(
    kubelet: Kubelet, plugins: Plugins, caplog: pytest.LogCaptureFixture
) -> None:
    """The device list is used nevertheless, and the next one is written if that is possible. A pod is rejected."""
    plugin = await plugins.serve(kubelet, "a")
    os.rename(kubelet.directory, f"{kubelet.directory}.away")
    plugin.send(healthy("a", "b"))
    await kubelet.wait_for(has(2, 2))
    assert "Writing checkpoint encountered" in caplog.text
    with pytest.raises(AdmissionError, match="No such file or directory"):
        await kubelet.admit(Pod("p", [Container("main", {R: 1})]))
    os.rename(f"{kubelet.directory}.away", kubelet.directory)
    plugin.send(healthy("a", "b", "c"))
    await kubelet.wait_for(has(3, 3))
    assert saved(kubelet).registered == {R: ("a", "b", "c")}
    await kubelet.admit(Pod("q", [Container("main", {R: 3})]))


# -- Register -------------------------------------------------------------------------------------------------------


async def test_plugin_without_options_is_refused(kubelet: Kubelet, plugins: Plugins) -> None:
    """ListAndWatch is not called."""
    plugin = await plugins.start("d")
    plugin.hooks["GetDevicePluginOptions"] = fail("no options today")
    _code, text = await register_error(kubelet, plugin.name)
    assert text == "failed to get device plugin options: rpc error: code = Internal desc = no options today"
    assert plugin.streams == []
    assert kubelet.resources == ()


@pytest.mark.kubelet(dial_timeout=0.05)
async def test_plugin_that_is_absent_is_refused(kubelet: Kubelet) -> None:
    _code, text = await register_error(kubelet, "absent.sock")
    assert text == "failed to dial device plugin: context deadline exceeded"
    assert kubelet.resources == ()


async def test_plugin_may_register_before_it_serves(kubelet: Kubelet, plugins: Plugins) -> None:
    """The kubelet dials until the timeout."""
    registering = asyncio.create_task(register(kubelet, "late.sock"))
    await kubelet.wait_for(lambda k: len(k.registrations) == 1)
    await plugins.start("d", name="late.sock")
    await registering
    await kubelet.wait_for(has(1, 1))


async def test_each_registration_has_its_own_connection(kubelet: Kubelet) -> None:
    """The authority of its calls is localhost."""
    called: asyncio.Queue[None] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # an empty frame of HTTP/2 settings
        await reader.readuntil(b"localhost")
        called.put_nowait(None)
        writer.close()

    async with await asyncio.start_unix_server(accept, f"{kubelet.directory}/raw.sock"), asyncio.timeout(PATIENCE):
        registering = [asyncio.create_task(register_error(kubelet, "raw.sock")) for _ in range(2)]
        for _ in registering:
            await called.get()
        await kubelet.stop()
        await asyncio.wait(registering)


async def test_plugin_that_gives_up_can_register_again(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.start("d")
    plugin.hooks["GetDevicePluginOptions"] = hold(asyncio.Event())
    registering = asyncio.create_task(register(kubelet, plugin.name))
    await plugin.called["GetDevicePluginOptions"].wait()
    registering.cancel()
    await kubelet.wait_for(lambda k: k.registrations[-1].outcome == "cancelled")
    plugin.hooks.clear()
    await register(kubelet, plugin.name)
    await kubelet.wait_for(has(1, 1))


async def test_stop_ends_pending_registrations(kubelet: Kubelet) -> None:
    registering = asyncio.create_task(register(kubelet, "absent.sock"))
    await kubelet.wait_for(lambda k: len(k.registrations) == 1)
    await kubelet.stop()
    await asyncio.wait([registering])
    assert registering.exception() is not None
    assert kubelet.registrations[0].outcome == "cancelled"


# -- ListAndWatch ---------------------------------------------------------------------------------------------------


async def test_each_message_replaces_the_list(kubelet: Kubelet, plugins: Plugins) -> None:
    """The view and the checkpoint are those of the last message. A health other than Healthy is unhealthy."""
    plugin = await plugins.serve(kubelet, "z", "a")
    assert counts(kubelet) == (2, 2)
    assert list(kubelet.resource(R).devices) == ["z", "a"]
    assert kubelet.resource(R).last_message_size == pb.ListAndWatchResponse(devices=plugin.devices).ByteSize()
    assert saved(kubelet) == Checkpoint((), {R: ("a", "z")})
    plugin.send([*healthy("b"), pb.Device(ID="a", health="healthy")])
    await kubelet.wait_for(has(2, 1))
    view = kubelet.resource(R)
    assert view.devices == {"b": "Healthy", "a": "healthy"}
    assert view.messages == 2
    assert (view.streams, view.streams_opened, view.connected) == (1, 1, True)
    assert saved(kubelet) == Checkpoint((), {R: ("b",)})


@pytest.mark.parametrize(("cause", "reason"), [("death", "rpc error"), ("drop", CANCELED)])
async def test_end_of_the_stream_makes_all_devices_unhealthy(
    kubelet: Kubelet, plugins: Plugins, cause: str, reason: str
) -> None:
    """The capacity stays; the kubelet does not dial the plugin again."""
    plugin = await plugins.serve(kubelet, "a", "b")
    if cause == "death":
        await plugin.server.stop(None)
    else:
        await kubelet.drop_streams(R)
        assert kubelet.resource(R).streams == 0
    await kubelet.wait_for(has(2, 0))
    view = kubelet.resource(R)
    assert view.devices == {"a": "Unhealthy", "b": "Unhealthy"}
    assert (view.connected, view.streams, view.streams_opened) == (False, 0, 1)
    assert (view.last_stream_end or "").startswith(reason)
    assert len(plugin.streams) == 1


async def test_resource_is_known_with_an_empty_list_or_a_failed_stream(kubelet: Kubelet, plugins: Plugins) -> None:
    await plugins.serve(kubelet, resource=OTHER)
    plugin = await plugins.start("d")
    plugin.hooks["ListAndWatch"] = fail("no list today")
    await register(kubelet, plugin.name)
    await kubelet.wait_for(has(0, 0))
    assert kubelet.resource(R).last_stream_end == "rpc error: code = Internal desc = no list today"
    assert kubelet.resources == (OTHER, R)
    assert counts(kubelet, OTHER) == (0, 0)


async def test_lost_resource_is_forgotten_after_the_grace_period(
    timed_kubelet: Kubelet, plugins: Plugins, clock: Clock
) -> None:
    """It is also removed from the checkpoint. The period begins with the loss; another registration ends it."""
    for _ in range(2):
        plugin = await plugins.serve(timed_kubelet, "d")
        clock.now += 1000
        assert counts(timed_kubelet) == (1, 1)
        plugin.end_stream()
        await timed_kubelet.wait_for(has(1, 0))
        clock.now += 300
        assert counts(timed_kubelet) == (1, 0)
    clock.now += 0.5
    view = timed_kubelet.resource(R)
    assert (view.known, view.capacity, view.messages) == (False, 0, 2)
    assert saved(timed_kubelet).registered == {}


async def test_restored_resource_is_forgotten_after_the_grace_period(
    timed_kubelet: Kubelet, plugins: Plugins, clock: Clock
) -> None:
    """The period begins with the kubelet's start."""
    await plugins.serve(timed_kubelet, "d")
    clock.now += 100
    await timed_kubelet.restart()
    clock.now += 300
    assert timed_kubelet.resource(R).known
    clock.now += 1
    assert timed_kubelet.resources == ()


@pytest.mark.kubelet(grace_period=0.1)
async def test_end_of_the_grace_period_is_a_change(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "d")
    plugin.end_stream()
    await kubelet.wait_for(lambda k: not k.resource(R).known)


@pytest.mark.kubelet(grace_period=0.1)
async def test_stream_may_end_after_its_resource_was_forgotten(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "d")
    kubelet.lose_devices()
    await kubelet.wait_for(lambda k: not k.resource(R).known)
    plugin.end_stream()
    await kubelet.wait_for(lambda k: k.resource(R).streams == 0)


@buggy_kubelet
async def test_messages_of_a_plugin_that_the_bug_disconnects_restore_no_devices(
    kubelet: Kubelet, plugins: Plugins
) -> None:
    old = await plugins.serve(kubelet, "a")
    new = await plugins.serve(kubelet, "a")
    for _ in range(1000):
        new.send(healthy("a"))
    old.end_stream()
    await kubelet.wait_for(lambda k: k.resource(R).streams == 0)
    assert counts(kubelet) == (1, 0)


@buggy_kubelet
async def test_bug_disconnects_a_plugin_that_is_being_registered(kubelet: Kubelet, plugins: Plugins) -> None:
    """The old stream ends while the new plugin is dialled."""
    old = await plugins.serve(kubelet, "a")
    registering = asyncio.create_task(register_error(kubelet, "new.sock"))
    await kubelet.wait_for(lambda k: len(k.registrations) == 2)
    old.end_stream()
    _code, text = await registering
    assert text.startswith("failed to dial device plugin: ")
    assert "deadline" not in text


# -- faults ---------------------------------------------------------------------------------------------------------


async def test_streams_can_be_dropped_by_resource(kubelet: Kubelet, plugins: Plugins) -> None:
    await plugins.serve(kubelet, "d")
    await plugins.serve(kubelet, "d", resource=OTHER)
    await kubelet.drop_streams(R)
    assert (counts(kubelet), counts(kubelet, OTHER)) == ((1, 0), (1, 1))
    await kubelet.drop_streams()
    assert counts(kubelet, OTHER) == (1, 0)


# -- waiting and events ---------------------------------------------------------------------------------------------


async def test_wait_for_describes_the_state_at_its_timeout(kubelet: Kubelet, plugins: Plugins) -> None:
    """It does not poll: the predicate is evaluated after a change only."""
    await plugins.serve(kubelet, "d")
    evaluations: list[Kubelet] = []
    with pytest.raises(TimeoutError) as error:
        await kubelet.wait_for(lambda k: bool(evaluations.append(k)), timeout=0.05)  # type: ignore[func-returns-value]
    assert len(evaluations) == 1
    text = str(error.value)
    assert "condition not met within 0.05 s; the kubelet (1.37) is running" in text
    assert f"{R}: known=True capacity=1 allocatable=1 connected=True streams=1 of 1 messages=1" in text
    assert "endpoint='0.sock'" in text
    assert "outcome='ok'" in text


async def test_error_inside_the_stand_in_is_raised_by_stop(
    kubelet_dir: str, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = asyncio.Event()

    def broken(*_: object) -> None:
        called.set()
        raise RuntimeError("a mistake")

    events: list[str] = []
    monkeypatch.setattr(PluginDirectory, "write_checkpoint", broken)
    kubelet = Kubelet(kubelet_dir, on_event=lambda event: events.append(event.name))
    await kubelet.start()
    plugin = await plugins.start("d")
    await register(kubelet, plugin.name)
    await called.wait()
    with pytest.raises(RuntimeError, match="a mistake"):
        await kubelet.stop()
    assert events[-1] == "kubelet-stopped"


async def test_events_are_reported_in_order(kubelet_dir: str, plugins: Plugins, clock: Clock) -> None:
    events: list[Event] = []
    async with Kubelet(kubelet_dir, on_event=events.append, clock=clock) as kubelet:
        plugin = await plugins.serve(kubelet, "a", "b")
        pod = Pod("p", [Container("main", {R: 1})])
        await kubelet.admit(pod)
        await kubelet.start_container(pod, "main")
        await kubelet.finish(pod)
        await kubelet.finish(pod)  # without effect
        plugin.end_stream()
        await kubelet.wait_for(has(2, 0))
        clock.now += 301
        assert kubelet.resources == ()
    names = [
        *("kubelet-started", "plugin-registered", "stream-opened", "devices-changed"),
        *("pod-admitted", "container-allocated", "container-started", "pod-removed"),
        *("stream-ended", "devices-changed", "resource-forgotten", "kubelet-stopped"),
    ]
    assert [event.name for event in events] == names
    assert events[0].fields == {"directory": kubelet_dir, "version": "1.37"}
    assert events[8].fields == {"resource": R, "endpoint": plugin.name, "reason": "EOF"}
    assert events[9].fields == {"resource": R, "capacity": 2, "allocatable": 0, "unhealthy": 2}
