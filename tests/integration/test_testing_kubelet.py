"""The stand-in kubelet over real sockets: starting, registering, listening, losing plugins, dying."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from typing import TYPE_CHECKING, Any, Self

import grpc
import pytest

from aosp_plugin import testing
from aosp_plugin.errors import KubeletDirectoryError
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc
from aosp_plugin.testing import Behaviour, Container, Kubelet, Pod
from aosp_plugin.testing import socket_server as kubelet_server
from aosp_plugin.testing.checkpoint import Checkpoint, decode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

R = "example.com/thing"
NEWER = [Behaviour.BUGGY, Behaviour.NEW]

every_behaviour = pytest.mark.parametrize("behaviour", Behaviour)
newer_behaviours = pytest.mark.parametrize("behaviour", NEWER)


class Plugin(rpc.DevicePluginServicer):
    """A plugin whose every stream follows a queue: a list of devices is sent, None ends the stream."""

    def __init__(self, directory: str, name: str, devices: Sequence[pb.Device] = ()) -> None:
        self.name = name
        self.first = pb.ListAndWatchResponse(devices=devices)
        self.streams: list[asyncio.Queue[pb.ListAndWatchResponse | None]] = []
        self.options_asked = 0
        self.asked = asyncio.Event()
        self.fail_options = False
        self.hold_options: asyncio.Event | None = None
        self.fail_stream = False
        self.server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{directory}/{name}")

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(None)

    async def GetDevicePluginOptions(self, _request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        """Answer, or fail, or wait first."""
        self.options_asked += 1
        self.asked.set()
        if self.hold_options is not None:
            await self.hold_options.wait()
        if self.fail_options:
            await context.abort(grpc.StatusCode.INTERNAL, "no options today")
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, _request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Send the first list, and then what the queue says."""
        queue: asyncio.Queue[pb.ListAndWatchResponse | None] = asyncio.Queue()
        self.streams.append(queue)
        if self.fail_stream:
            await context.abort(grpc.StatusCode.INTERNAL, "no list today")
        yield self.first
        while (message := await queue.get()) is not None:
            yield message

    async def _unimplemented(self, request: Any, context: Any) -> Any:  # noqa: ARG002 - the base's signature
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    Allocate = GetPreferredAllocation = PreStartContainer = _unimplemented

    def send(self, devices: Sequence[pb.Device]) -> None:
        """Send a list on the last stream."""
        self.streams[-1].put_nowait(pb.ListAndWatchResponse(devices=devices))

    def end_stream(self) -> None:
        """Return from the last stream."""
        self.streams[-1].put_nowait(None)


class RawPlugin:
    """A plugin's socket that shows what comes in; it says no more than that it speaks HTTP/2."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.connections: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything."""
        self._server.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame
        self.connections.put_nowait(reader)

    async def until(self, connection: asyncio.StreamReader, wanted: bytes) -> None:
        """Return once these bytes have come in."""
        received = b""
        while wanted not in received:
            data = await connection.read(4096)
            assert data, f"{wanted!r} is not in {received!r}"
            received += data


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
def place() -> Iterator[str]:
    directory = tempfile.mkdtemp(dir="/tmp")
    yield directory
    shutil.rmtree(directory)


def healthy(*names: str) -> list[pb.Device]:
    return [pb.Device(ID=name, health="Healthy") for name in names]


async def register(
    kubelet: Kubelet,
    endpoint: str,
    *,
    resource: str = R,
    version: str = "v1beta1",
    timeout: float = 20,
    options: pb.DevicePluginOptions | None = None,
) -> None:
    request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource, options=options)
    local = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{kubelet.socket_path}", options=local) as channel:
        await rpc.RegistrationStub(channel).Register(request, timeout=timeout)


async def register_anyhow(kubelet: Kubelet, endpoint: str) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        await register(kubelet, endpoint)


async def register_fails(kubelet: Kubelet, endpoint: str, **arguments: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await register(kubelet, endpoint, **arguments)
    return error.value.code(), error.value.details() or ""


async def register_and_give_up(kubelet: Kubelet, endpoint: str) -> grpc.StatusCode:
    """Register with a deadline that ends it when the kubelet has the request, and not before."""
    deadline = 0.05
    while True:
        code, _text = await register_fails(kubelet, endpoint, timeout=deadline)
        if kubelet.registrations:
            return code
        deadline *= 2


def counts(kubelet: Kubelet, resource: str = R) -> tuple[int, int]:
    view = kubelet.resource(resource)
    return view.capacity, view.allocatable


def has(capacity: int, allocatable: int) -> Callable[[Kubelet], bool]:
    return lambda kubelet: kubelet.resource(R).known and counts(kubelet) == (capacity, allocatable)


def test_the_tutorials_example_runs() -> None:
    """The code in the module's docstring, word for word, in a fresh interpreter."""
    lines = (testing.__doc__ or "").splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)  # noqa: S603 - our own text


# -- starting and stopping ------------------------------------------------------------------------------------------


@every_behaviour
async def test_a_start_makes_sweeps_and_listens(place: str, behaviour: Behaviour) -> None:
    """The directory is made with mode 0750; a stale kubelet.sock of the last run is replaced."""
    directory = f"{place}/new"
    for _ in range(2):
        async with Kubelet(directory, behaviour=behaviour) as kubelet:
            assert stat.S_IMODE(os.stat(directory).st_mode) == 0o750
            assert kubelet.socket_path == f"{directory}/kubelet.sock"
            assert kubelet.checkpoint_path == f"{directory}/kubelet_internal_checkpoint"
            code, _text = await register_fails(kubelet, "x", version="v2")
            assert code is grpc.StatusCode.UNKNOWN
    assert ("DEPRECATION" in os.listdir(directory)) is (behaviour is Behaviour.OLD)


async def test_the_checkpoint_is_read_before_the_sweep(place: str) -> None:
    """The sockets of plugins go, the checkpoint stays and counts."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{place}/stale.sock")
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        assert os.listdir(place).count("stale.sock") == 0
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        await kubelet.restart()
        assert kubelet.resources == (R,)


@pytest.mark.parametrize("garbage", [False, True])
async def test_a_stop_leaves_a_socket_that_refuses(place: str, garbage: bool) -> None:  # noqa: FBT001
    """The file is the same one as before, so that no watcher hears of the death; to connect is refused."""
    kubelet = Kubelet(place)
    kubelet.faults.garbage_register = garbage
    await kubelet.start()
    inode = os.stat(kubelet.socket_path).st_ino
    await kubelet.stop()
    assert os.stat(kubelet.socket_path).st_ino == inode
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(kubelet.socket_path)


async def test_a_stop_may_be_repeated_and_a_start_may_not(place: str) -> None:
    """Stopping a stopped kubelet does nothing; starting a running one is a mistake of the test."""
    async with Kubelet(place) as kubelet:
        with pytest.raises(RuntimeError, match="runs already"):
            await kubelet.start()
        await kubelet.stop()


async def test_a_stopped_kubelet_knows_nothing(place: str) -> None:
    """Its resources are gone, and it admits no pods."""
    kubelet = Kubelet(place)
    assert kubelet.resources == ()
    assert not kubelet.resource(R).known
    assert kubelet.resource(R).streams == 0
    assert "is stopped" in kubelet.describe()
    with pytest.raises(RuntimeError, match="stopped"):
        await kubelet.admit(Pod("p", [Container("c")]))


async def test_a_directory_too_long_for_a_socket_is_refused() -> None:
    """At once, and not as a puzzling failure later."""
    with pytest.raises(KubeletDirectoryError):
        Kubelet("/tmp/" + "x" * 100)


@every_behaviour
async def test_a_stop_breaks_every_stream_and_marks_nothing(place: str, behaviour: Behaviour) -> None:
    """The plugin's stream is cancelled; the checkpoint keeps the devices that were healthy."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        await kubelet.stop()
        await plugin.server.stop(10)  # returns before its time is up only because no stream is left
        with open(kubelet.checkpoint_path, "rb") as file:  # noqa: ASYNC230
            assert decode(file.read()).registered == {R: ("d",)}


@every_behaviour
async def test_after_a_restart_a_resource_is_known_without_devices(place: str, behaviour: Behaviour) -> None:
    """0 of 0 until the plugin registers again; nobody dials it."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        await kubelet.restart()
        view = kubelet.resource(R)
        assert (view.known, view.capacity, view.allocatable, view.connected) == (True, 0, 0, False)
        assert len(plugin.streams) == 1
        assert len(kubelet.registrations) == 1


async def test_a_restart_can_lose_the_checkpoint(place: str) -> None:
    """The resource is not even known."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        await kubelet.restart(keep_checkpoint=False)
        assert kubelet.resources == ()
        assert "kubelet_internal_checkpoint" not in os.listdir(place)


async def test_without_checkpoints_no_file_is_read_or_written(place: str) -> None:
    """For measurements: whatever lies there is left alone."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
    with open(kubelet.checkpoint_path, "rb") as file:  # noqa: ASYNC230
        before = file.read()
    async with Kubelet(place, checkpoints=False) as other, Plugin(place, "b.sock", healthy("x", "y")):
        assert other.resources == ()
        await register(other, "b.sock")
        await other.wait_for(has(2, 2))
    with open(kubelet.checkpoint_path, "rb") as file:  # noqa: ASYNC230
        assert file.read() == before


@every_behaviour
async def test_a_checkpoint_that_can_not_be_written_is_logged(
    place: str, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """The list counts all the same, and is written as soon as that is possible again."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("a")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        os.rename(place, f"{place}.away")
        plugin.send(healthy("a", "b"))
        await kubelet.wait_for(has(2, 2))
        assert "Writing checkpoint encountered" in caplog.text
        os.rename(f"{place}.away", place)
        plugin.send(healthy("a", "b", "c"))
        await kubelet.wait_for(has(3, 3))
        with open(kubelet.checkpoint_path, "rb") as file:  # noqa: ASYNC230
            assert decode(file.read()) == Checkpoint((), {R: ("a", "b", "c")})


# -- Register -------------------------------------------------------------------------------------------------------


@every_behaviour
async def test_a_bad_request_is_answered_and_recorded(place: str, behaviour: Behaviour) -> None:
    """UNKNOWN with the kubelet's text; nothing is dialled."""
    async with Kubelet(place, behaviour=behaviour) as kubelet:
        text = 'the ResourceName "foo" is invalid'
        assert await register_fails(kubelet, "a.sock", resource="foo") == (grpc.StatusCode.UNKNOWN, text)
        seen = kubelet.registrations[-1]
        assert (seen.version, seen.endpoint, seen.resource_name) == ("v1beta1", "a.sock", "foo")
        assert (seen.outcome, seen.accepted) == (text, False)


@newer_behaviours
async def test_newer_kubelets_ask_for_options_before_they_answer(place: str, behaviour: Behaviour) -> None:
    """Register is pending while GetDevicePluginOptions is, and the list is asked for only after that."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        plugin.hold_options = asyncio.Event()
        registering = asyncio.create_task(register(kubelet, "a.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
        assert kubelet.registrations[0].outcome == "pending"
        plugin.hold_options.set()
        await registering
        assert kubelet.registrations[0].accepted
        assert plugin.options_asked == 1
        await kubelet.wait_for(has(1, 1))


@newer_behaviours
async def test_newer_kubelets_refuse_a_plugin_without_options(place: str, behaviour: Behaviour) -> None:
    """The error names the plugin's own; ListAndWatch is never called and the resource is absent."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        plugin.fail_options = True
        _code, text = await register_fails(kubelet, "a.sock")
        assert text == "failed to get device plugin options: rpc error: code = Internal desc = no options today"
        assert plugin.streams == []
        assert kubelet.resources == ()


@newer_behaviours
async def test_newer_kubelets_say_that_they_could_not_dial(place: str, behaviour: Behaviour) -> None:
    """After the time for dialling is up."""
    async with Kubelet(place, behaviour=behaviour, dial_timeout=0.05) as kubelet:
        _code, text = await register_fails(kubelet, "absent.sock")
        assert text == "failed to dial device plugin: context deadline exceeded"


async def test_the_old_kubelet_answers_before_it_dials(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """OK, and a failure to dial is only its own knowledge."""
    async with Kubelet(place, behaviour=Behaviour.OLD, dial_timeout=0.05) as kubelet:
        await register(kubelet, "absent.sock")
        assert kubelet.registrations[0].accepted
        await kubelet.wait_for(lambda k: k.registrations[0].dial_error is not None)
        assert kubelet.registrations[0].dial_error == "failed to dial device plugin: context deadline exceeded"
        assert kubelet.resources == ()
        assert "Failed to dial device plugin with request" in caplog.text


async def test_the_old_kubelet_never_asks_for_options(place: str) -> None:
    """It has them from the request."""
    async with Kubelet(place, behaviour=Behaviour.OLD) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        plugin.fail_options = True
        await register(kubelet, "a.sock", options=pb.DevicePluginOptions(pre_start_required=True))
        await kubelet.wait_for(has(1, 1))
        assert plugin.options_asked == 0
        assert kubelet.registrations[0].options.pre_start_required


@every_behaviour
async def test_a_plugin_may_register_before_it_serves(place: str, behaviour: Behaviour) -> None:
    """As long as it does so in time: a kubelet dials until then."""
    async with Kubelet(place, behaviour=behaviour) as kubelet:
        registering = asyncio.create_task(register(kubelet, "late.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
        async with Plugin(place, "late.sock", healthy("d")):
            await registering
            await kubelet.wait_for(has(1, 1))


@pytest.mark.parametrize(
    ("behaviour", "authority"), [(Behaviour.OLD, None), (Behaviour.BUGGY, b"localhost"), (Behaviour.NEW, b"localhost")]
)
async def test_the_authority_is_the_versions(place: str, behaviour: Behaviour, authority: bytes | None) -> None:
    """The raw path of the socket from the old one, localhost from newer ones, as read on the wire."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, RawPlugin(f"{place}/raw.sock") as raw:
        registering = asyncio.create_task(register_anyhow(kubelet, "raw.sock"))
        connection = await asyncio.wait_for(raw.connections.get(), 10)
        await asyncio.wait_for(raw.until(connection, authority or raw.path.encode()), 10)
        await kubelet.stop()
        await registering


async def test_each_registration_is_dialled_anew(place: str) -> None:
    """Also at the same path: no connection is shared."""
    async with Kubelet(place, behaviour=Behaviour.OLD) as kubelet, RawPlugin(f"{place}/raw.sock") as raw:
        for _ in range(2):
            await register(kubelet, "raw.sock")
            await asyncio.wait_for(raw.connections.get(), 10)
        await kubelet.stop()


async def test_a_plugin_that_gives_up_is_recorded(place: str) -> None:
    """Its Register is cancelled, what was dialled is forgotten, and it can come again."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        plugin.hold_options = asyncio.Event()
        assert await register_and_give_up(kubelet, "a.sock") is grpc.StatusCode.DEADLINE_EXCEEDED
        await kubelet.wait_for(lambda k: k.registrations[0].outcome == "cancelled")
        plugin.hold_options = None
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))


@every_behaviour
async def test_a_kubelet_that_stops_leaves_no_register_behind(place: str, behaviour: Behaviour) -> None:
    """A plugin that is being dialled when the kubelet dies is dropped."""
    async with Kubelet(place, behaviour=behaviour) as kubelet:
        registering = asyncio.create_task(register(kubelet, "absent.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
        if behaviour is Behaviour.OLD:
            await registering  # answered already: only the dialling is under way
        await kubelet.stop()
        await asyncio.wait([registering])
        assert kubelet.registrations[0].outcome == ("ok" if behaviour is Behaviour.OLD else "cancelled")
        assert kubelet.registrations[0].dial_error is None


# -- ListAndWatch ---------------------------------------------------------------------------------------------------


@every_behaviour
async def test_each_message_replaces_the_list(place: str, behaviour: Behaviour) -> None:
    """Counts, order, health and size are those of the last message, and the checkpoint has its healthy ids."""
    clock = Clock()
    async with (
        Kubelet(place, behaviour=behaviour, clock=clock) as kubelet,
        Plugin(place, "a.sock", healthy("z", "a")) as plugin,
    ):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(2, 2))
        assert list(kubelet.resource(R).devices) == ["z", "a"]
        assert kubelet.resource(R).last_message_size == plugin.first.ByteSize()
        clock.now = 7.0
        plugin.send([*healthy("b"), pb.Device(ID="a", health="Sick")])
        await kubelet.wait_for(has(2, 1))
        view = kubelet.resource(R)
        assert view.devices == {"b": "Healthy", "a": "Sick"}
        assert (view.messages, view.last_message_at) == (2, 7.0)
        assert (view.streams, view.streams_opened, view.connected) == (1, 1, True)
        with open(kubelet.checkpoint_path, "rb") as file:  # noqa: ASYNC230
            assert decode(file.read()) == Checkpoint((), {R: ("b",)})


@every_behaviour
async def test_an_empty_list_is_a_known_resource(place: str, behaviour: Behaviour) -> None:
    """Capacity 0, not absent."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock"):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(0, 0))
        assert kubelet.resources == (R,)


@every_behaviour
@pytest.mark.parametrize("how", ["return", "death", "drop"])
async def test_the_end_of_the_stream_makes_all_unhealthy(place: str, behaviour: Behaviour, how: str) -> None:
    """Whatever ends it: the capacity stays, the plugin is disconnected and never asked again."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("a", "b")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(2, 2))
        if how == "return":
            plugin.end_stream()
        elif how == "death":
            await plugin.server.stop(None)
        else:
            await kubelet.drop_streams(R)
            assert kubelet.resource(R).streams == 0
        await kubelet.wait_for(has(2, 0))
        view = kubelet.resource(R)
        assert view.devices == {"a": "Unhealthy", "b": "Unhealthy"}
        assert (view.connected, view.streams, view.streams_opened) == (False, 0, 1)
        expected = {"return": "EOF", "drop": "rpc error: code = Canceled desc = context canceled"}
        assert view.last_stream_end == expected.get(how, view.last_stream_end)
        assert view.last_stream_end
        assert len(plugin.streams) == 1


@every_behaviour
async def test_a_stream_that_fails_at_once_leaves_the_resource(place: str, behaviour: Behaviour) -> None:
    """0 of 0, but known."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        plugin.fail_stream = True
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(0, 0))
        assert kubelet.resource(R).last_stream_end == "rpc error: code = Internal desc = no list today"


async def test_a_message_too_large_breaks_the_stream(place: str) -> None:
    """The limit is a test's to set; as large as it is passes, one byte more is the end."""
    first = pb.ListAndWatchResponse(devices=healthy("d" * 90))
    assert first.ByteSize() == 103
    async with Kubelet(place, max_message=103) as kubelet, Plugin(place, "a.sock", first.devices) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        plugin.send(healthy("d" * 91))
        await kubelet.wait_for(has(1, 0))
        end = kubelet.resource(R).last_stream_end or ""
        assert end.startswith("rpc error: code = ResourceExhausted")
        assert "(104 vs. 103)" in end


async def test_the_limit_is_four_mebibytes(place: str) -> None:
    """Unless a test sets another one."""
    devices = healthy(*(f"aosp_binder{n:06}" for n in range(139_810)))
    assert pb.ListAndWatchResponse(devices=devices).ByteSize() == 4_194_300
    async with Kubelet(place, checkpoints=False) as kubelet, Plugin(place, "a.sock", devices) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(139_810, 139_810))
        plugin.send([*devices, *healthy("one more")])
        await kubelet.wait_for(has(139_810, 0))


@every_behaviour
async def test_a_lost_resource_is_forgotten_after_the_grace_period(place: str, behaviour: Behaviour) -> None:
    """Not before it is over, and from the checkpoint too."""
    clock = Clock()
    async with (
        Kubelet(place, behaviour=behaviour, clock=clock, grace_period=300) as kubelet,
        Plugin(place, "a.sock", healthy("d")) as plugin,
    ):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        clock.now = 1000.0
        assert counts(kubelet) == (1, 1)
        plugin.end_stream()
        await kubelet.wait_for(has(1, 0))
        clock.now = 1300.0
        assert counts(kubelet) == (1, 0)
        clock.now = 1300.5
        view = kubelet.resource(R)
        assert (view.known, view.capacity, view.messages) == (False, 0, 1)
        await kubelet.restart()
        assert kubelet.resources == ()


@every_behaviour
async def test_a_restored_resource_is_forgotten_too(place: str, behaviour: Behaviour) -> None:
    """Its grace period begins with the kubelet's start."""
    clock = Clock()
    async with Kubelet(place, behaviour=behaviour, clock=clock) as kubelet, Plugin(place, "a.sock", healthy("d")):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        clock.now = 100.0
        await kubelet.restart()
        clock.now = 400.0
        assert list(kubelet.resources) == [R]
        clock.now = 401.0
        assert list(kubelet.resources) == []


@every_behaviour
async def test_a_plugin_that_comes_back_in_time_is_not_forgotten(place: str, behaviour: Behaviour) -> None:
    """Its registration ends the grace period."""
    clock = Clock()
    async with (
        Kubelet(place, behaviour=behaviour, clock=clock) as kubelet,
        Plugin(place, "a.sock", healthy("d")) as plugin,
        Plugin(place, "b.sock", healthy("d")),
    ):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        plugin.end_stream()
        await kubelet.wait_for(has(1, 0))
        await register(kubelet, "b.sock")
        await kubelet.wait_for(has(1, 1))
        clock.now = 10_000.0
        assert counts(kubelet) == (1, 1)


# -- registering again ----------------------------------------------------------------------------------------------


async def two_plugins(kubelet: Kubelet, stack: contextlib.AsyncExitStack, place: str) -> tuple[Plugin, Plugin]:
    """Register two plugins of one resource, one after the other."""
    old = await stack.enter_async_context(Plugin(place, "old.sock", healthy("a")))
    new = await stack.enter_async_context(Plugin(place, "new.sock", healthy("a", "b")))
    await register(kubelet, "old.sock")
    await kubelet.wait_for(has(1, 1))
    await register(kubelet, "new.sock")
    await kubelet.wait_for(has(2, 2))
    return old, new


@every_behaviour
async def test_an_old_plugins_messages_still_count(place: str, behaviour: Behaviour) -> None:
    """Its stream stays open, and its list overwrites the new one's."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, contextlib.AsyncExitStack() as stack:
        old, _new = await two_plugins(kubelet, stack, place)
        assert kubelet.resource(R).streams == 2
        old.send(healthy("x", "y", "z"))
        await kubelet.wait_for(has(3, 3))


@pytest.mark.parametrize("behaviour", [Behaviour.OLD, Behaviour.NEW])
async def test_the_end_of_an_old_plugin_harms_nothing(place: str, behaviour: Behaviour) -> None:
    """The new one stays connected, and its devices healthy."""
    async with Kubelet(place, behaviour=behaviour) as kubelet, contextlib.AsyncExitStack() as stack:
        old, _new = await two_plugins(kubelet, stack, place)
        old.end_stream()
        await kubelet.wait_for(lambda k: k.resource(R).streams == 1)
        assert counts(kubelet) == (2, 2)
        assert kubelet.resource(R).connected


async def test_the_bug_takes_the_new_plugin_down_with_the_old_one(place: str) -> None:
    """1.25 to 1.36: the new plugin's stream is cancelled, its devices are unhealthy until it registers again."""
    async with Kubelet(place, behaviour=Behaviour.BUGGY) as kubelet, contextlib.AsyncExitStack() as stack:
        old, new = await two_plugins(kubelet, stack, place)
        old.end_stream()
        await kubelet.wait_for(has(2, 0))
        await kubelet.wait_for(lambda k: k.resource(R).streams == 0)
        assert not kubelet.resource(R).connected
        await register(kubelet, "new.sock")
        await kubelet.wait_for(has(2, 2))
        assert len(new.streams) == 2


async def test_the_bug_takes_a_plugin_down_that_is_only_just_asked(place: str) -> None:
    """The old stream ends while the new plugin is asked for its options: its connection is closed."""
    async with (
        Kubelet(place, behaviour=Behaviour.BUGGY) as kubelet,
        Plugin(place, "old.sock", healthy("a")) as old,
        Plugin(place, "new.sock", healthy("b")) as new,
    ):
        await register(kubelet, "old.sock")
        await kubelet.wait_for(has(1, 1))
        new.hold_options = asyncio.Event()
        registering = asyncio.create_task(register_fails(kubelet, "new.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        await new.asked.wait()
        old.end_stream()
        _code, text = await registering
        assert text.startswith("failed to get device plugin options: rpc error: code = Canceled")


async def test_the_bug_takes_a_plugin_down_that_is_only_just_dialled(place: str) -> None:
    """The old stream ends while the new plugin's socket is not there yet."""
    async with Kubelet(place, behaviour=Behaviour.BUGGY) as kubelet, Plugin(place, "old.sock", healthy("a")) as old:
        await register(kubelet, "old.sock")
        await kubelet.wait_for(has(1, 1))
        registering = asyncio.create_task(register_fails(kubelet, "absent.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        old.end_stream()
        _code, text = await registering
        assert text.startswith("failed to dial device plugin: ")
        assert "deadline" not in text


async def test_the_same_socket_is_refused_while_it_is_connected(place: str) -> None:
    """1.37 tells plugins apart by path; the first registration is not harmed."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        _code, text = await register_fails(kubelet, "a.sock")
        assert text == f"device plugin already connected: {place}/a.sock"
        assert kubelet.resource(R).connected
        plugin.send(healthy("d", "e"))
        await kubelet.wait_for(has(2, 2))


# -- faults ---------------------------------------------------------------------------------------------------------


async def test_a_register_can_be_refused(place: str) -> None:
    """With any text, until the fault is taken away."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        kubelet.faults.refuse_register = "not today"
        assert await register_fails(kubelet, "a.sock") == (grpc.StatusCode.UNKNOWN, "not today")
        kubelet.faults.refuse_register = None
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))


async def test_a_register_can_hang(place: str) -> None:
    """Until it is released, and then goes on as usual."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        kubelet.faults.hang_register = True
        registering = asyncio.create_task(register(kubelet, "a.sock"))
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
        assert kubelet.registrations[0].outcome == "pending"
        kubelet.faults.release_register()
        await registering
        await kubelet.wait_for(has(1, 1))


async def test_a_register_can_be_slow(place: str) -> None:
    """Slower than the caller's deadline, here."""
    async with Kubelet(place) as kubelet:
        kubelet.faults.slow_register = 3600
        assert await register_and_give_up(kubelet, "a.sock") is grpc.StatusCode.DEADLINE_EXCEEDED
        await kubelet.wait_for(lambda k: k.registrations[0].outcome == "cancelled")


async def test_the_stream_can_be_left_out(place: str) -> None:
    """Register is answered, and then nothing comes."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        kubelet.faults.never_open_stream = True
        await register(kubelet, "a.sock")
        view = kubelet.resource(R)
        assert (view.connected, view.streams_opened, view.known) == (True, 0, False)
        await kubelet.drop_streams()
        assert plugin.streams == []


async def test_the_socket_can_talk_garbage(place: str) -> None:
    """From the next start on; a start after the fault is gone is a good one."""
    async with Kubelet(place) as kubelet:
        kubelet.faults.garbage_register = True
        await kubelet.restart()
        reader, writer = await asyncio.open_unix_connection(kubelet.socket_path)
        assert await reader.read() == kubelet_server.GARBAGE
        writer.close()
        await writer.wait_closed()
        code, _text = await register_fails(kubelet, "a.sock", timeout=5)
        assert code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        kubelet.faults.garbage_register = False
        await kubelet.restart()
        async with Plugin(place, "a.sock", healthy("d")):
            await register(kubelet, "a.sock")
            await kubelet.wait_for(has(1, 1))


async def test_streams_can_be_dropped_by_resource(place: str) -> None:
    """Those of other resources stay; without a name all go."""
    other = "example.com/other"
    async with (
        Kubelet(place) as kubelet,
        Plugin(place, "a.sock", healthy("d")),
        Plugin(place, "b.sock", healthy("d")),
    ):
        await register(kubelet, "a.sock")
        await register(kubelet, "b.sock", resource=other)
        await kubelet.wait_for(lambda k: counts(k) == counts(k, other) == (1, 1))
        await kubelet.drop_streams(R)
        assert (counts(kubelet), counts(kubelet, other)) == ((1, 0), (1, 1))
        await kubelet.drop_streams()
        assert counts(kubelet, other) == (1, 0)


async def test_a_second_stream_outlives_the_first(place: str) -> None:
    """The plugin is lost only with its last stream; messages of either count."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")) as plugin:
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        await kubelet.open_second_stream(R)
        await kubelet.wait_for(lambda k: k.resource(R).messages == 2)
        assert kubelet.resource(R).streams == 2
        plugin.streams[0].put_nowait(None)
        await kubelet.wait_for(lambda k: k.resource(R).streams == 1)
        assert kubelet.resource(R).connected
        plugin.send(healthy("d", "e"))
        await kubelet.wait_for(has(2, 2))
        plugin.end_stream()
        await kubelet.wait_for(has(2, 0))


async def test_a_second_stream_needs_a_plugin(place: str) -> None:
    """A resource that nobody registered has no connection."""
    async with Kubelet(place) as kubelet:
        with pytest.raises(KeyError):
            await kubelet.open_second_stream(R)


# -- waiting --------------------------------------------------------------------------------------------------------


async def test_a_wait_that_fails_describes_the_state(place: str) -> None:
    """Every resource with its counts, and the last registration with its outcome."""
    async with Kubelet(place) as kubelet, Plugin(place, "a.sock", healthy("d")):
        await register(kubelet, "a.sock")
        await kubelet.wait_for(has(1, 1))
        with pytest.raises(TimeoutError) as error:
            await kubelet.wait_for(has(5, 5), timeout=0.01)
        text = str(error.value)
        assert "not within 0.01 s; the kubelet (NEW) runs" in text
        assert f"{R}: known=True capacity=1 allocatable=1 connected=True streams=1 of 1 messages=1" in text
        assert "endpoint='a.sock'" in text
        assert "outcome='ok'" in text


async def test_a_wait_asks_only_when_something_changes(place: str) -> None:
    """Once at first, and then once per change at most: there is no polling."""
    asked = 0

    def predicate(kubelet: Kubelet) -> bool:
        nonlocal asked
        asked += 1
        return False

    async with Kubelet(place) as kubelet:
        with pytest.raises(TimeoutError):
            await kubelet.wait_for(predicate, timeout=0.05)
        assert asked == 1


async def test_a_mistake_in_the_stand_in_is_not_swallowed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks one of its tasks is raised when it stops."""
    happened = asyncio.Event()

    def broken(*_: object) -> None:
        happened.set()
        raise RuntimeError("a mistake")

    monkeypatch.setattr("aosp_plugin.testing.directory.write_checkpoint", broken)
    kubelet = Kubelet(place)
    await kubelet.start()
    async with Plugin(place, "a.sock", healthy("d")):
        await register(kubelet, "a.sock")
        await happened.wait()
        with pytest.raises(RuntimeError, match="a mistake"):
            await kubelet.stop()
