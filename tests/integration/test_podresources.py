"""Who has which device: the client of the podresources API, and the stand-in that answers it, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aosp_plugin.framework import podresources_client
from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as rpc
from aosp_plugin.framework.deviceplugin.kubelet_client import identify
from aosp_plugin.framework.podresources_client import Allocations, Owner, owners_in
from aosp_plugin.framework.podresources_client import PodResources as Client
from aosp_plugin.testing import Container, Kubelet, Pod
from aosp_plugin.testing.podresources_server import PodResources
from tests.support import PATIENCE, RESOURCE, Nodes, listed, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PHONE = Pod("phone-1", [Container("android", {RESOURCE: 2}), Container("agent", {RESOURCE: 1})])


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time, of which only what the test moves counts: a busy machine is waited for."""
    monkeypatch.setattr(podresources_client, "PATIENCE", PATIENCE)
    monkeypatch.setattr(podresources_client, "DEADLINE", PATIENCE)
    return Clock()


@pytest.fixture
def socket(kubelet_dir: str) -> str:
    return os.path.join(kubelet_dir, "pod-resources.sock")


class Answers(rpc.PodResourcesListerServicer):
    """A kubelet that a test gives its words."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.asked = 0

    async def List(self, _request: Any, context: Any) -> Any:  # noqa: N802
        """Answer."""
        self.asked += 1
        return await self.answer(context)

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Nobody asks."""
        raise NotImplementedError

    GetAllocatableResources = Get


@contextlib.asynccontextmanager
async def answering(socket: str, answer: Callable[[Any], Any]) -> AsyncIterator[Answers]:
    """Serve a kubelet whose List does what ``answer`` does."""
    server = grpc.aio.server()
    answers = Answers(answer)
    rpc.add_PodResourcesListerServicer_to_server(answers, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield answers
    finally:
        await server.stop(None)


def message(*devices: tuple[str, str, str, str, list[str]]) -> pb.ListPodResourcesResponse:
    """Return an answer with a pod for each of namespace, pod, container, resource and device IDs."""
    answer = pb.ListPodResourcesResponse()
    for namespace, name, container, resource, ids in devices:
        pod = answer.pod_resources.add(name=name, namespace=namespace)
        pod.containers.add(name=container).devices.add(resource_name=resource, device_ids=ids)
    return answer


async def given(_context: Any) -> pb.ListPodResourcesResponse:
    """Answer with one pod."""
    return message(("games", "phone-1", "android", RESOURCE, ["n1"]))


GIVEN = Allocations("", {RESOURCE: {"n1": (Owner("games", "phone-1", "android"),)}})


# From the answer to who has what


def test_devices_are_told_by_resource() -> None:
    """Those of others are passed over, and a resource of ours that nobody has is there, empty."""
    answer = message(
        ("a", "p", "c", "x.io/one", ["n1", "n2"]),
        ("a", "q", "c", "x.io/other", ["n1"]),
        ("a", "r", "c", "y.io/y", ["n"]),
    )
    assert owners_in(answer, ["x.io/one", "x.io/other", "x.io/none"]) == {
        "x.io/one": {"n1": (Owner("a", "p", "c"),), "n2": (Owner("a", "p", "c"),)},
        "x.io/other": {"n1": (Owner("a", "q", "c"),)},
        "x.io/none": {},
    }


def test_a_device_near_two_numa_nodes_has_one_owner() -> None:
    """The kubelet tells of it once for each."""
    answer = message(("a", "p", "c", RESOURCE, ["n1"]))
    answer.pod_resources[0].containers[0].devices.add(resource_name=RESOURCE, device_ids=["n1"])
    assert owners_in(answer, [RESOURCE]) == {RESOURCE: {"n1": (Owner("a", "p", "c"),)}}


def test_a_replicated_device_has_every_owner() -> None:
    """In the kubelet's order; also two containers of one pod."""
    answer = message(("b", "p", "c", RESOURCE, ["n1"]), ("a", "p", "c", RESOURCE, ["n1"]))
    answer.pod_resources[0].containers.add(name="d").devices.add(resource_name=RESOURCE, device_ids=["n1"])
    assert owners_in(answer, [RESOURCE])[RESOURCE]["n1"] == (
        Owner("b", "p", "c"),
        Owner("b", "p", "d"),
        Owner("a", "p", "c"),
    )


# Asking


async def test_the_kubelet_s_answer_is_told(socket: str, clock: Clock) -> None:
    """Once for a question."""
    async with answering(socket, given) as kubelet:
        assert await Client(socket, [RESOURCE], clock).current() == GIVEN
    assert kubelet.asked == 1


async def test_it_is_not_asked_before_it_is_wanted_nor_again_at_once(socket: str, clock: Clock) -> None:
    """Nobody who looks is nobody who asks; many who look ask once every few seconds."""
    async with answering(socket, given) as kubelet:
        client = Client(socket, [RESOURCE], clock)
        assert kubelet.asked == 0
        first = await client.current()
        clock.now += podresources_client.MIN_INTERVAL - 0.01
        assert await client.current() is first
        assert kubelet.asked == 1
        clock.now += 0.02
        assert await client.current() is first, "it says the same, and equal answers are the same object"
        assert kubelet.asked == 2


async def test_several_at_once_ask_once(socket: str, clock: Clock) -> None:
    """Each of them gets the answer."""
    async with answering(socket, given) as kubelet:
        client = Client(socket, [RESOURCE], clock)
        assert await asyncio.gather(*(client.current() for _ in range(5))) == [GIVEN] * 5
    assert kubelet.asked == 1


async def test_a_kubelet_that_is_slow_keeps_nobody_waiting(
    socket: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said before is told meanwhile; once that is old, that it is not known."""
    monkeypatch.setattr(podresources_client, "PATIENCE", 0.01)
    go, asked = asyncio.Event(), asyncio.Event()
    go.set()

    async def slow(context: Any) -> pb.ListPodResourcesResponse:
        asked.set()
        await go.wait()
        return await given(context)

    async with answering(socket, slow) as kubelet:
        client = Client(socket, [RESOURCE], clock)
        while await client.current() != GIVEN:
            pass
        go.clear()
        asked.clear()
        clock.now += podresources_client.MAX_AGE
        assert await client.current() == GIVEN
        await asked.wait()
        clock.now += 0.1
        assert await client.current() == Allocations("the kubelet has not answered yet")
        clock.now += podresources_client.MIN_INTERVAL
        await client.current()
        go.set()
        monkeypatch.setattr(podresources_client, "PATIENCE", PATIENCE)
        assert await client.current() == GIVEN
        assert kubelet.asked == 2


async def test_a_kubelet_that_never_answers_is_given_up(
    socket: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline; the reason says so."""
    monkeypatch.setattr(podresources_client, "DEADLINE", 0.1)

    async def never(_context: Any) -> None:
        await asyncio.Event().wait()

    async with answering(socket, never):
        told = await Client(socket, [RESOURCE], clock).current()
    assert told == Allocations(f"List at {socket} failed: no answer within 0 s")


async def test_its_refusal_is_told(socket: str, clock: Clock) -> None:
    """In its own words; and asked again later, it may say more."""
    refusing = True

    async def refuse(context: Any) -> pb.ListPodResourcesResponse:
        if refusing:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")
        return await given(context)

    async with answering(socket, refuse):
        client = Client(socket, [RESOURCE], clock)
        told = await client.current()
        assert told.problem == f"List at {socket} failed: RESOURCE_EXHAUSTED: too many"
        assert told.owners == {}
        refusing = False
        clock.now += podresources_client.MIN_INTERVAL
        assert await client.current() == GIVEN


async def test_an_answer_of_more_than_four_mebibytes_is_taken(socket: str, clock: Clock) -> None:
    """GRPC's own limit is that, and the kubelet may send four times as much."""
    devices = [f"aosp_binder{number:060}" for number in range(70_000)]

    async def much(_context: Any) -> pb.ListPodResourcesResponse:
        answer = message(("games", "phone-1", "android", RESOURCE, devices))
        assert answer.ByteSize() > 5_000_000
        return answer

    async with answering(socket, much):
        told = await Client(socket, [RESOURCE], clock).current()
    assert told.problem == ""
    assert len(told.owners[RESOURCE]) == 70_000


async def test_without_a_socket_the_reason_is_told(socket: str, clock: Clock) -> None:
    """And once there is one, who has what."""
    client = Client(socket, [RESOURCE], clock)
    assert (await client.current()).problem.startswith(f"{socket} does not exist: ")
    async with answering(socket, given):
        clock.now += podresources_client.MIN_INTERVAL
        assert await client.current() == GIVEN


async def test_a_socket_that_nobody_listens_at_is_told(socket: str, clock: Clock) -> None:
    """As a kubelet leaves it that was killed; the next one is asked at once."""
    async with await asyncio.start_unix_server(lambda *_: None, socket):
        pass
    assert identify(socket) is not None
    client = Client(socket, [RESOURCE], clock)
    assert (await client.current()).problem.startswith(f"List at {socket} failed: UNAVAILABLE: ")
    os.unlink(socket)
    async with answering(socket, given):
        clock.now += podresources_client.MIN_INTERVAL
        assert await client.current() == GIVEN, "gRPC does not go on waiting for the one before"


async def test_what_is_no_answer_is_told(socket: str, clock: Clock) -> None:
    """Something else than a kubelet may listen there."""
    connected = asyncio.Event()

    async def chatter(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.write(b"220 this is no gRPC\r\n" * 8)
        writer.close()

    async with await asyncio.start_unix_server(chatter, socket):
        told = await Client(socket, [RESOURCE], clock).current()
    assert connected.is_set()
    assert told.problem.startswith(f"List at {socket} failed: ")


async def test_the_kubelet_is_called_localhost(socket: str, clock: Clock) -> None:
    """Left alone, gRPC sends the socket's path as the authority, which a Go server may refuse."""
    sent = b""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS, none: HTTP/2 goes on from here
        while b"PodResourcesLister" not in sent:
            sent += await reader.read(4096)
        writer.close()

    async with await asyncio.start_unix_server(take, socket):
        await Client(socket, [RESOURCE], clock).current()
    assert b"localhost" in sent
    assert os.path.basename(socket).encode() not in sent


async def test_turned_off_it_is_never_asked(clock: Clock) -> None:
    """An empty path is no socket."""
    told = await Client("", [RESOURCE], clock).current()
    assert told.problem == "disabled (pod_resources_socket is empty)"


def test_nobody_who_looks_is_kept_from_a_change_for_long() -> None:
    """The page asks twice a second, and its first answer is to be there within one."""
    assert podresources_client.PATIENCE < 0.5
    assert podresources_client.DEADLINE <= 2.0
    assert 1.0 <= podresources_client.MIN_INTERVAL < podresources_client.MAX_AGE
    assert podresources_client.RECEIVE_LIMIT == 16 * 1024 * 1024


# The stand-in


async def test_the_stand_in_tells_what_its_kubelet_has_given(nodes: Nodes, kubelet_dir: str, socket: str) -> None:
    """Each container by itself, until its pod is over."""
    nodes.make(0, 1, 2, 3, 4)
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, socket, {"phone-1": "games"}) as told,
        running(nodes, kubelet_dir),
        grpc.aio.insecure_channel(f"unix:{socket}") as channel,
    ):
        stub = rpc.PodResourcesListerStub(channel)
        await listed(kubelet, 5)
        assert await stub.List(pb.ListPodResourcesRequest()) == pb.ListPodResourcesResponse()
        admitted = await kubelet.admit(PHONE)
        await kubelet.admit(Pod("phone-2", [Container("android", {RESOURCE: 1})]))
        answer = await stub.List(pb.ListPodResourcesRequest())
        assert [(pod.namespace, pod.name) for pod in answer.pod_resources] == [
            ("games", "phone-1"),
            ("default", "phone-2"),
        ]
        for container in answer.pod_resources[0].containers:
            (devices,) = container.devices
            assert devices.resource_name == RESOURCE
            assert tuple(devices.device_ids) == admitted.containers[container.name].device_ids[RESOURCE]
        await kubelet.finish(PHONE)
        answer = await stub.List(pb.ListPodResourcesRequest())
        assert [pod.name for pod in answer.pod_resources] == ["phone-2"]
        assert told.asked == 3


async def test_the_stand_in_tells_of_one_pod_and_of_what_can_be_given(
    nodes: Nodes, kubelet_dir: str, socket: str
) -> None:
    """Get by namespace and name; GetAllocatableResources: the healthy devices, used ones too."""
    nodes.make(0, 1, 2)
    async with (
        Kubelet(kubelet_dir) as kubelet,
        PodResources(kubelet, socket),
        running(nodes, kubelet_dir),
        grpc.aio.insecure_channel(f"unix:{socket}") as channel,
    ):
        stub = rpc.PodResourcesListerStub(channel)
        await listed(kubelet, 3)
        await kubelet.admit(PHONE)
        one = await stub.Get(pb.GetPodResourcesRequest(pod_name="phone-1", pod_namespace="default"))
        assert {container.name for container in one.pod_resources.containers} == {"android", "agent"}
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Get(pb.GetPodResourcesRequest(pod_name="phone-1", pod_namespace="games"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        nodes.remove(2)
        await listed(kubelet, 2)
        (devices,) = (await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())).devices
        assert (devices.resource_name, list(devices.device_ids)) == (RESOURCE, ["aosp_binder0", "aosp_binder1"])


async def test_the_stand_in_removes_its_socket(kubelet_dir: str, socket: str) -> None:
    """A second one can listen at the same path."""
    async with Kubelet(kubelet_dir) as kubelet:
        for _ in range(2):
            async with PodResources(kubelet, socket) as told:
                assert identify(told.path) is not None
            assert identify(socket) is None


@pytest.mark.parametrize(
    ("part", "encoded"),
    [
        (pb.GetPodResourcesRequest(pod_name="p", pod_namespace="n"), b"\x0a\x01p\x12\x01n"),
        (pb.PodResources(name="p", namespace="n"), b"\x0a\x01p\x12\x01n"),
        (pb.PodResources(containers=[pb.ContainerResources(name="c")]), b"\x1a\x03\x0a\x01c"),
        (pb.ContainerResources(devices=[pb.ContainerDevices()]), b"\x12\x00"),
        (pb.ContainerDevices(resource_name="r", device_ids=["d"]), b"\x0a\x01r\x12\x01d"),
        (pb.ListPodResourcesResponse(pod_resources=[pb.PodResources()]), b"\x0a\x00"),
        (pb.GetPodResourcesResponse(pod_resources=pb.PodResources()), b"\x0a\x00"),
        (pb.AllocatableResourcesResponse(devices=[pb.ContainerDevices()]), b"\x0a\x00"),
    ],
)
def test_messages_are_the_kubelets_on_the_wire(part: Any, encoded: bytes) -> None:
    """Field numbers and types are those of the kubelet's podresources v1 api.proto."""
    assert part.SerializeToString(deterministic=True) == encoded


def test_what_it_does_not_know_is_skipped() -> None:
    """The kubelet's messages have more fields: CPUs, memory and topology."""
    extended = (
        pb.ContainerDevices(resource_name="r", device_ids=["d"]).SerializeToString() + b"\x1a\x04\x0a\x02\x08\x01"
    )
    known = pb.ContainerDevices.FromString(extended)
    assert (known.resource_name, list(known.device_ids)) == ("r", ["d"])


def test_it_is_the_kubelets_service() -> None:
    """The path of the calls."""
    service = pb.DESCRIPTOR.services_by_name["PodResourcesLister"]
    assert service.full_name == "v1.PodResourcesLister"
    assert [method.name for method in service.methods] == ["List", "GetAllocatableResources", "Get"]
