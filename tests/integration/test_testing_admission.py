"""The stand-in kubelet over real sockets: admitting pods, starting containers, remembering both."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import grpc
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as rpc
from aosp_plugin.testing import AdmissionError, Behaviour, Container, Kubelet, Pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

R = "example.com/thing"
OTHER = "example.com/other"

every_behaviour = pytest.mark.parametrize("behaviour", Behaviour)
newer_behaviours = pytest.mark.parametrize("behaviour", [Behaviour.BUGGY, Behaviour.NEW])


class Plugin(rpc.DevicePluginServicer):
    """A plugin that notes every call, and answers each as a test says."""

    def __init__(self, resource: str, *ids: str, options: pb.DevicePluginOptions | None = None) -> None:
        self.resource = resource
        self.options = options or pb.DevicePluginOptions()
        self.devices = [pb.Device(ID=name, health="Healthy") for name in ids]
        self.allocated: list[list[str]] = []
        self.asked: list[pb.ContainerPreferredAllocationRequest] = []
        self.pre_started: list[list[str]] = []
        self.pre_start_seconds = 0.0
        self.fail_allocate: str | None = None
        self.fail_preferred = False
        self.fail_pre_start = False
        self.no_containers = False
        self.answer: dict[str, Any] = {}
        self.preferred: list[str] | None = []
        self.before_preference: Callable[[], Awaitable[None]] | None = None
        self.over = False
        self.hold_allocate: asyncio.Event | None = None
        self.in_allocate = asyncio.Event()
        self.changed = asyncio.Event()

    async def GetDevicePluginOptions(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        """Tell the same as the registration."""
        return self.options

    async def ListAndWatch(self, _request: pb.Empty, _context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Send the devices whenever they change."""
        while not self.over:
            self.changed.clear()
            yield pb.ListAndWatchResponse(devices=self.devices)
            await self.changed.wait()

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        """Answer with the ids in an environment variable."""
        (wanted,) = request.container_requests
        self.allocated.append(list(wanted.devices_ids))
        self.in_allocate.set()
        if self.hold_allocate is not None:
            await self.hold_allocate.wait()
        if self.fail_allocate is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.fail_allocate)
        if self.no_containers:
            return pb.AllocateResponse()
        answer = self.answer or {"envs": {self.resource: ",".join(wanted.devices_ids)}}
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(**answer)])

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Answer with the ids that the test prefers."""
        (wanted,) = request.container_requests
        self.asked.append(wanted)
        if self.before_preference is not None:
            await self.before_preference()
        if self.fail_preferred:
            await context.abort(grpc.StatusCode.INTERNAL, "no idea")
        if self.preferred is None:
            return pb.PreferredAllocationResponse()
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        """Note the ids and how long the caller waits."""
        self.pre_started.append(list(request.devices_ids))
        self.pre_start_seconds = context.time_remaining()
        if self.fail_pre_start:
            await context.abort(grpc.StatusCode.INTERNAL, "not ready")
        return pb.PreStartContainerResponse()


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class Node:
    """A kubelet and its plugins, in a directory of their own."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.kubelet = Kubelet(directory)
        self._servers: list[grpc.aio.Server] = []

    async def boot(self, **arguments: Any) -> Kubelet:
        """Start a kubelet with these arguments."""
        self.kubelet = Kubelet(self.directory, **arguments)
        await self.kubelet.start()
        return self.kubelet

    async def serve(self, plugin: Plugin, name: str | None = None) -> None:
        """Serve and register a plugin, and wait until its devices are known."""
        name = name or f"{len(self._servers)}.sock"
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{self.directory}/{name}")
        await server.start()
        self._servers.append(server)
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=name, resource_name=plugin.resource, options=plugin.options
        )
        before = self.kubelet.resource(plugin.resource).messages
        local = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{self.kubelet.socket_path}", options=local) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=20)
        await self.kubelet.wait_for(lambda k: k.resource(plugin.resource).messages > before)

    async def kill_plugins(self) -> None:
        """Stop all plugins."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(None)

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all that runs."""
        await self.kubelet.stop()
        await self.kill_plugins()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    directory = tempfile.mkdtemp(dir="/tmp")
    async with Node(directory) as ready:
        yield ready
    shutil.rmtree(directory)


def pod(name: str, count: int = 1, resource: str = R) -> Pod:
    return Pod(name, [Container("main", {resource: count})])


PREFERS = pb.DevicePluginOptions(get_preferred_allocation_available=True)
PRE_STARTS = pb.DevicePluginOptions(pre_start_required=True)


async def rejection(kubelet: Kubelet, wanted: Pod) -> str:
    """Admit a pod, and return what is between the words that every rejection begins and ends with."""
    with pytest.raises(AdmissionError) as error:
        await kubelet.admit(wanted)
    assert error.value.reason == "UnexpectedAdmissionError"
    whole = error.value.message
    prefix, suffix = kubelet.behaviour.rejection("|").split("|")
    assert whole.startswith(prefix)
    assert whole.endswith(suffix)
    return whole.removeprefix(prefix).removesuffix(suffix)


# -- admission ------------------------------------------------------------------------------------------------------


@every_behaviour
async def test_a_pod_gets_its_devices(node: Node, behaviour: Behaviour) -> None:
    """One Allocate, with the ids that are then the container's; what the plugin answered arrives."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", "b", "c")
    await node.serve(plugin)
    admitted = await kubelet.admit(pod("p", 2))
    assert (admitted.name, admitted.uid) == ("p", pod("p").uid)
    (ids,) = plugin.allocated
    got = admitted.containers["main"]
    assert got.device_ids == {R: tuple(ids)}
    assert len(set(ids)) == 2
    assert got.envs == {R: ",".join(ids)}
    assert kubelet.allocated(R) == dict.fromkeys(ids, ("p", "main"))
    view = kubelet.resource(R)
    assert (view.capacity, view.allocatable) == (3, 3)


async def test_each_container_and_resource_has_a_call_of_its_own(node: Node) -> None:
    """Two containers and two resources make four calls; no device is given out twice."""
    kubelet = await node.boot()
    things, others = Plugin(R, *"abcd"), Plugin(OTHER, "x", "y")
    await node.serve(things)
    await node.serve(others)
    limits = {R: 2, OTHER: 1}
    admitted = await kubelet.admit(Pod("p", [Container("one", limits), Container("two", limits)]))
    assert [len(ids) for ids in things.allocated] == [2, 2]
    assert [len(ids) for ids in others.allocated] == [1, 1]
    assert sorted(chain(*things.allocated)) == list("abcd")
    assert set(admitted.containers["one"].envs) == {R, OTHER}
    assert set(kubelet.allocated(OTHER)) == {"x", "y"}


async def test_a_seed_decides_what_go_leaves_to_chance(node: Node) -> None:
    """The same seed gives the same devices in the same order, another one others."""
    seen = []
    for seed in (1, 1, 2):
        kubelet = await node.boot(seed=seed, checkpoints=False)
        plugin = Plugin(R, *(f"d{n}" for n in range(30)))
        await node.serve(plugin)
        await kubelet.admit(pod("p", 10))
        seen.append(plugin.allocated)
        await kubelet.stop()
        await node.kill_plugins()
    assert seen[0] == seen[1] != seen[2]


@every_behaviour
async def test_a_resource_that_no_plugin_has_is_skipped(node: Node, behaviour: Behaviour) -> None:
    """The pod runs without it, as on a node whose plugin came too late."""
    kubelet = await node.boot(behaviour=behaviour)
    admitted = await kubelet.admit(pod("p"))
    assert admitted.containers["main"].device_ids == {}


@every_behaviour
async def test_too_many_are_refused_in_the_kubelets_words(node: Node, behaviour: Behaviour) -> None:
    """With the status message of that version; the plugin is not called and nothing is taken."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    text = f"requested number of devices unavailable for {R}. Requested: 2, Available: 1"
    assert await rejection(kubelet, pod("p", 2)) == text
    assert plugin.allocated == []
    assert (await kubelet.admit(pod("q"))).containers["main"].device_ids == {R: ("a",)}


async def test_unhealthy_devices_are_not_given_out(node: Node) -> None:
    """Only the healthy one is there to have."""
    kubelet = await node.boot()
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    plugin.devices[0].health = "Unhealthy"
    plugin.changed.set()
    await kubelet.wait_for(lambda k: k.resource(R).allocatable == 1)
    await kubelet.admit(pod("p"))
    assert plugin.allocated == [["b"]]


@every_behaviour
async def test_a_plugins_refusal_rejects_the_pod(node: Node, behaviour: Behaviour) -> None:
    """With the plugin's own error; the devices are free again."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    plugin.fail_allocate = "a is ill"
    assert await rejection(kubelet, pod("p")) == "rpc error: code = FailedPrecondition desc = a is ill"
    plugin.fail_allocate = None
    await kubelet.admit(pod("q"))
    assert plugin.allocated == [["a"], ["a"]]


async def test_a_rejected_pods_other_containers_are_freed(node: Node) -> None:
    """What its first container got is given to the next pod."""
    kubelet = await node.boot()
    things, others = Plugin(R, "a"), Plugin(OTHER)
    await node.serve(things)
    await node.serve(others)
    await rejection(kubelet, Pod("p", [Container("one", {R: 1}), Container("two", {OTHER: 1})]))
    assert kubelet.allocated(R) == {}
    await kubelet.admit(pod("q"))
    assert things.allocated == [["a"], ["a"]]


async def test_an_answer_without_containers_leaks_the_devices(node: Node) -> None:
    """The pod is rejected, and what was picked stays in use until some pod ends."""
    kubelet = await node.boot()
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    await kubelet.admit(pod("first"))
    plugin.no_containers = True
    assert (await rejection(kubelet, pod("p"))).startswith("no containers return in allocation response")
    plugin.no_containers = False
    assert "Requested: 1, Available: 0" in await rejection(kubelet, pod("q"))
    await kubelet.finish(pod("first"))
    assert len((await kubelet.admit(pod("r", 2))).containers["main"].device_ids[R]) == 2


async def test_a_plugin_that_has_gone_leaves_no_healthy_devices(node: Node) -> None:
    """A new pod is rejected while the plugin is away."""
    kubelet = await node.boot()
    await node.serve(Plugin(R, "a"))
    await node.kill_plugins()
    await kubelet.wait_for(lambda k: not k.resource(R).connected)
    assert await rejection(kubelet, pod("p")) == (f"no healthy devices present; cannot allocate unhealthy devices {R}")


async def test_a_stop_of_the_kubelet_ends_an_admission(node: Node) -> None:
    """The call that was under way fails like any other."""
    kubelet = await node.boot()
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    plugin.hold_allocate = asyncio.Event()
    admitting = asyncio.create_task(rejection(kubelet, pod("p")))
    await plugin.in_allocate.wait()
    await kubelet.stop()
    assert await admitting == "rpc error: code = Canceled desc = grpc: the client connection is closing"


async def test_an_admission_can_be_cancelled(node: Node) -> None:
    """By the test itself: the pod is not active then."""
    kubelet = await node.boot()
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    plugin.hold_allocate = asyncio.Event()
    admitting = asyncio.create_task(kubelet.admit(pod("p")))
    await plugin.in_allocate.wait()
    admitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admitting
    assert kubelet.allocated(R) == {}


async def test_pods_are_admitted_one_at_a_time(node: Node) -> None:
    """While one Allocate is under way, no other one begins."""
    kubelet = await node.boot()
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    plugin.hold_allocate = asyncio.Event()
    admitting = [asyncio.create_task(kubelet.admit(pod(name))) for name in ("p", "q")]
    await plugin.in_allocate.wait()
    # A call on the same connection that is begun later: once it is answered, an earlier one has come too.
    await kubelet.open_second_stream(R)
    await kubelet.wait_for(lambda k: k.resource(R).messages == 2)
    assert len(plugin.allocated) == 1
    plugin.hold_allocate.set()
    await asyncio.gather(*admitting)
    assert sorted(chain(*plugin.allocated)) == ["a", "b"]


@pytest.mark.parametrize(("behaviour", "numa"), [(Behaviour.OLD, "0"), (Behaviour.BUGGY, "-1"), (Behaviour.NEW, "-1")])
async def test_the_checkpoint_files_devices_under_numa_nodes(node: Node, behaviour: Behaviour, numa: str) -> None:
    """Those without topology under a key that changed with the versions."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "plain", "near")
    plugin.devices[1].topology.nodes.add(ID=1)
    await node.serve(plugin)
    await kubelet.admit(pod("p", 2))
    with open(kubelet.checkpoint_path) as file:  # noqa: ASYNC230
        (entry,) = json.load(file)["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"] == {numa: ["plain"], "1": ["near"]}
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod("p").uid, "main", R)


# -- preference -----------------------------------------------------------------------------------------------------


@every_behaviour
async def test_a_preference_is_asked_for_only_where_the_option_says_so(node: Node, behaviour: Behaviour) -> None:
    """Without the option Allocate is all."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    await kubelet.admit(pod("p"))
    assert plugin.asked == []


@every_behaviour
async def test_a_preference_is_asked_for_and_followed(node: Node, behaviour: Behaviour) -> None:
    """With all free devices and the whole size, in random order."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, *"abcdefgh", options=PREFERS)
    plugin.preferred = ["c", "e"]
    await node.serve(plugin)
    await kubelet.admit(pod("p", 2))
    (asked,) = plugin.asked
    assert sorted(asked.available_deviceIDs) == list("abcdefgh")
    assert (list(asked.must_include_deviceIDs), asked.allocation_size) == ([], 2)
    assert sorted(plugin.allocated[0]) == ["c", "e"]
    plugin.preferred = []
    await kubelet.admit(pod("q", 2))
    assert sorted(plugin.asked[1].available_deviceIDs) == list("abdfgh")
    assert len(set(plugin.allocated[1]) - {"c", "e"}) == 2


@pytest.mark.parametrize("preferred", [None, [], ["bogus"], ["a", "b", "c", "d"]])
async def test_a_strange_preference_is_no_failure(node: Node, preferred: list[str] | None) -> None:
    """None, unknown ids, too many: the kubelet makes do."""
    kubelet = await node.boot()
    plugin = Plugin(R, *"abcd", options=PREFERS)
    plugin.preferred = preferred
    await node.serve(plugin)
    await kubelet.admit(pod("p", 2))
    assert len(set(plugin.allocated[0])) == 2
    assert set(plugin.allocated[0]) < set("abcd")


@every_behaviour
async def test_a_preference_that_fails_rejects_the_pod(node: Node, behaviour: Behaviour) -> None:
    """With the plugin's error."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", options=PREFERS)
    plugin.fail_preferred = True
    await node.serve(plugin)
    assert await rejection(kubelet, pod("p")) == (
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no idea"
    )


# -- init containers ------------------------------------------------------------------------------------------------


@every_behaviour
async def test_app_containers_reuse_init_containers_devices(node: Node, behaviour: Behaviour) -> None:
    """Two init containers share, then each app container has its own; three devices are enough for all."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, *"abc", options=PREFERS)
    await node.serve(plugin)
    admitted = await kubelet.admit(
        Pod(
            "p",
            [Container("one", {R: 1}), Container("two", {R: 2})],
            [Container("first", {R: 1}), Container("second", {R: 2})],
        )
    )
    ids = {name: set(got.device_ids[R]) for name, got in admitted.containers.items()}
    assert ids["first"] < ids["second"]
    assert ids["one"] < ids["second"]
    assert ids["one"] | ids["two"] == set("abc")
    # Asked for when reuse does not suffice: not for "one", and with what is reused as a must for the others.
    assert [request.allocation_size for request in plugin.asked] == [1, 2, 2]
    assert set(plugin.asked[1].must_include_deviceIDs) == ids["first"]
    assert set(plugin.asked[1].available_deviceIDs) == set("abc")
    assert set(plugin.asked[2].must_include_deviceIDs) == ids["second"] - ids["one"]


@newer_behaviours
async def test_a_sidecar_keeps_its_devices(node: Node, behaviour: Behaviour) -> None:
    """It may have an init container's, but the app container gets others."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    inits = [Container("init", {R: 1}), Container("sidecar", {R: 1}, restartable=True)]
    admitted = await kubelet.admit(Pod("p", [Container("main", {R: 1})], inits))
    ids = {name: got.device_ids[R] for name, got in admitted.containers.items()}
    assert ids["init"] == ids["sidecar"] != ids["main"]


async def test_the_old_kubelet_knows_no_sidecars(node: Node) -> None:
    """There it is an init container like any other."""
    kubelet = await node.boot(behaviour=Behaviour.OLD)
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    admitted = await kubelet.admit(
        Pod("p", [Container("main", {R: 1})], [Container("sidecar", {R: 1}, restartable=True)])
    )
    assert admitted.containers["sidecar"].device_ids == admitted.containers["main"].device_ids


# -- the end of a pod, and restarts -----------------------------------------------------------------------------------


@every_behaviour
async def test_a_finished_pods_devices_are_given_out_again(node: Node, behaviour: Behaviour) -> None:
    """The plugin is not told; the checkpoint is not written until the next allocation."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    await kubelet.admit(pod("p"))
    assert kubelet.allocated(R) == {"a": ("p", "main")}
    await kubelet.finish(pod("p"))
    with open(kubelet.checkpoint_path) as file:  # noqa: ASYNC230
        assert pod("p").uid in file.read()
    await kubelet.admit(pod("q"))
    assert kubelet.allocated(R) == {"a": ("q", "main")}
    assert plugin.allocated == [["a"], ["a"]]


async def test_finishing_a_stranger_does_nothing(node: Node) -> None:
    """A pod that was never admitted has nothing to give back."""
    kubelet = await node.boot()
    await kubelet.finish(pod("p"))
    assert kubelet.allocated(R) == {}


@every_behaviour
async def test_a_restart_keeps_allocations(node: Node, behaviour: Behaviour) -> None:
    """A pod has the same devices without a call, and others can't get them; its start replays the answer."""
    kubelet = await node.boot(behaviour=behaviour)
    await node.serve(Plugin(R, "a", "b"))
    before = await kubelet.admit(pod("p"))
    await kubelet.restart()
    await node.kill_plugins()
    plugin = Plugin(R, "a", "b")
    await node.serve(plugin)
    assert await kubelet.admit(pod("p")) == before
    assert plugin.allocated == []
    assert await kubelet.start_container(pod("p"), "main") == before.containers["main"]
    await kubelet.admit(pod("q"))
    assert set(kubelet.allocated(R).values()) == {("p", "main"), ("q", "main")}


async def test_a_pod_is_refused_where_no_checkpoint_can_be_written(node: Node) -> None:
    """What was allocated has to outlive the kubelet, or nobody may have it."""
    kubelet = await node.boot()
    await node.serve(Plugin(R, "a"))
    os.rename(node.directory, f"{node.directory}.away")
    with pytest.raises(AdmissionError, match="No such file or directory"):
        await kubelet.admit(Pod("p", [Container("c", {R: 1})]))
    os.rename(f"{node.directory}.away", node.directory)
    await kubelet.admit(Pod("q", [Container("c", {R: 1})]))


async def test_a_lost_checkpoint_gives_a_device_out_twice(node: Node) -> None:
    """Allocate must be ready for that."""
    kubelet = await node.boot()
    await node.serve(Plugin(R, "a"))
    await kubelet.admit(pod("p"))
    await kubelet.restart(keep_checkpoint=False)
    await node.kill_plugins()
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    await kubelet.admit(pod("q"))
    assert plugin.allocated == [["a"]]
    assert kubelet.allocated(R) == {"a": ("q", "main")}


async def test_another_kubelet_frees_pods_that_it_was_not_told_of(node: Node) -> None:
    """The checkpoint has them, but nobody says that they are still there."""
    kubelet = await node.boot()
    await node.serve(Plugin(R, "a"))
    await kubelet.admit(pod("p"))
    await kubelet.stop()
    await node.kill_plugins()
    kubelet = await node.boot()
    assert kubelet.allocated(R) == {}


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (Behaviour.OLD, None),
        (Behaviour.NEW, f"no healthy devices present; cannot allocate unhealthy devices {R}"),
    ],
)
async def test_a_pod_that_comes_back_before_the_plugin(node: Node, behaviour: Behaviour, text: str | None) -> None:
    """1.20 admits it with what it has; newer kubelets reject it, as after a reboot."""
    kubelet = await node.boot(behaviour=behaviour)
    await node.serve(Plugin(R, "a"))
    before = await kubelet.admit(pod("p"))
    await kubelet.restart()
    if text is None:
        assert await kubelet.admit(pod("p")) == before
    else:
        assert await rejection(kubelet, pod("p")) == text


async def test_a_forgotten_resource_in_use_is_unregistered(node: Node) -> None:
    """A pod still has a device of it, so that another pod is rejected and does not run without."""
    clock = Clock()
    kubelet = await node.boot(clock=clock)
    await node.serve(Plugin(R, "a"))
    await kubelet.admit(pod("p"))
    await node.kill_plugins()
    await kubelet.wait_for(lambda k: not k.resource(R).connected)
    clock.now = 301.0
    assert await rejection(kubelet, pod("q")) == f"cannot allocate unregistered device {R}"


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_plugin_that_is_lost_during_an_admission_is_not_called(node: Node, forgotten: bool) -> None:  # noqa: FBT001
    """The one asked for its preference is replaced meanwhile, and the one after it ends, or is even forgotten."""
    clock = Clock()
    kubelet = await node.boot(behaviour=Behaviour.OLD, clock=clock)
    asked, successor = Plugin(R, "a", options=PREFERS), Plugin(R, "a")

    async def lose_the_successor() -> None:
        await node.serve(successor, "new.sock")
        successor.over = True
        successor.changed.set()
        await kubelet.wait_for(lambda k: not k.resource(R).connected)
        if forgotten:
            clock.now = 301.0
            assert kubelet.resources == ()

    asked.before_preference = lose_the_successor
    await node.serve(asked)
    stopped = f"endpoint &{{{R} {node.directory}/new.sock}} has been stopped"
    assert await rejection(kubelet, pod("p")) == (f"unknown Device Plugin {R}" if forgotten else stopped)
    assert successor.allocated == asked.allocated == []


# -- container start ------------------------------------------------------------------------------------------------


@every_behaviour
async def test_a_start_replays_the_answer(node: Node, behaviour: Behaviour) -> None:
    """As often as the container starts; no call is made without the option."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a")
    await node.serve(plugin)
    admitted = await kubelet.admit(pod("p"))
    for _ in range(2):
        assert await kubelet.start_container(pod("p"), "main") == admitted.containers["main"]
    assert len(plugin.allocated) == 1
    assert plugin.pre_started == []


@every_behaviour
async def test_every_start_is_announced_where_the_option_says_so(node: Node, behaviour: Behaviour) -> None:
    """With the container's ids, and thirty seconds to answer."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", "b", "c", options=PRE_STARTS)
    await node.serve(plugin)
    await kubelet.admit(pod("p", 2))
    for _ in range(2):
        await kubelet.start_container(pod("p"), "main")
    assert [sorted(ids) for ids in plugin.pre_started] == [sorted(plugin.allocated[0])] * 2
    assert 20 < plugin.pre_start_seconds < 40


async def start_error(kubelet: Kubelet, wanted: Pod) -> str:
    with pytest.raises(AdmissionError) as error:
        await kubelet.start_container(wanted, "main")
    assert error.value.reason == "CreateContainerConfigError"
    return error.value.message


@every_behaviour
async def test_a_start_that_the_plugin_refuses_is_an_error(node: Node, behaviour: Behaviour) -> None:
    """With the plugin's error; the kubelet tries again, and then it may go well."""
    kubelet = await node.boot(behaviour=behaviour)
    plugin = Plugin(R, "a", options=PRE_STARTS)
    await node.serve(plugin)
    await kubelet.admit(pod("p"))
    plugin.fail_pre_start = True
    assert await start_error(kubelet, pod("p")) == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = not ready"
    )
    plugin.fail_pre_start = False
    await kubelet.start_container(pod("p"), "main")


@every_behaviour
async def test_a_stopped_plugin_lets_no_container_start(node: Node, behaviour: Behaviour) -> None:
    """The endpoint is named."""
    kubelet = await node.boot(behaviour=behaviour)
    await node.serve(Plugin(R, "a", options=PRE_STARTS))
    await kubelet.admit(pod("p"))
    await node.kill_plugins()
    await kubelet.wait_for(lambda k: not k.resource(R).connected)
    assert await start_error(kubelet, pod("p")) == (
        "device plugin PreStartContainer rpc failed with err: "
        f"endpoint &{{{R} {node.directory}/0.sock}} has been stopped"
    )


@every_behaviour
async def test_a_container_that_was_admitted_without_the_plugin_gets_its_devices_late(
    node: Node, behaviour: Behaviour
) -> None:
    """The plugin came between admission and start."""
    kubelet = await node.boot(behaviour=behaviour)
    await kubelet.admit(pod("p"))
    await node.serve(Plugin(R, "a"))
    assert (await kubelet.start_container(pod("p"), "main")).device_ids == {R: ("a",)}


async def test_a_late_container_of_a_plugin_that_wants_to_be_told_never_starts(node: Node) -> None:
    """The kubelet looks for the ids to tell before it allocates any."""
    kubelet = await node.boot()
    await kubelet.admit(pod("p"))
    await node.serve(Plugin(R, "a", options=PRE_STARTS))
    assert await start_error(kubelet, pod("p")) == (
        f"no devices found allocated in local cache for pod {pod('p').uid}, container main, resource {R}"
    )


async def test_a_container_of_a_forgotten_resource_does_not_start(node: Node) -> None:
    """It is still the plugin's resource, but there is no endpoint."""
    clock = Clock()
    kubelet = await node.boot(clock=clock)
    await node.serve(Plugin(R, "a"))
    await kubelet.admit(pod("p"))
    await node.kill_plugins()
    await kubelet.wait_for(lambda k: not k.resource(R).connected)
    clock.now = 301.0
    assert await start_error(kubelet, pod("p")) == f"endpoint not found in cache for a registered resource: {R}"


async def test_a_container_after_a_restart_starts_without_the_plugin(node: Node) -> None:
    """The restored endpoint has no options, so that nobody is called."""
    kubelet = await node.boot()
    await node.serve(Plugin(R, "a", options=PRE_STARTS))
    before = await kubelet.admit(pod("p"))
    await kubelet.restart()
    assert await kubelet.start_container(pod("p"), "main") == before.containers["main"]
