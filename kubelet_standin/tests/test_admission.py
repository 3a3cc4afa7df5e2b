"""The stand-in kubelet on real sockets: pod admission, container start, and the memory of both."""

import asyncio
import json
from itertools import chain

import pytest

from kubelet_standin import AdmissionError, Container, Kubelet, Pod
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin import admission
from kubelet_standin.tests.stub import OTHER, PRE_STARTS, PREFERS, Clock, Plugins, R, fail, healthy, hold

NO_HEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {R}"


def pod(name: str, count: int = 1) -> Pod:
    return Pod(name, [Container("main", {R: count})])


async def rejection(kubelet: Kubelet, rejected: Pod) -> str:
    """Admit a pod, which must be rejected; return the message without the text that all rejections share."""
    with pytest.raises(AdmissionError) as error:
        await kubelet.admit(rejected)
    assert error.value.reason == "UnexpectedAdmissionError"
    prefix, suffix = admission.rejection("|").split("|")
    assert error.value.message.startswith(prefix)
    assert error.value.message.endswith(suffix)
    return error.value.message.removeprefix(prefix).removesuffix(suffix)


async def start_error(kubelet: Kubelet, failing: Pod) -> str:
    """Start a container, which must fail; return the message."""
    with pytest.raises(AdmissionError) as error:
        await kubelet.start_container(failing, "main")
    assert error.value.reason == "CreateContainerConfigError"
    return error.value.message


# -- admission ------------------------------------------------------------------------------------------------------


async def test_each_container_and_resource_has_its_own_call(kubelet: Kubelet, plugins: Plugins) -> None:
    """A call has the container's IDs, and its response reaches the container. No device is allocated twice."""
    plugin = await plugins.serve(kubelet, *"abcd")
    other = await plugins.serve(kubelet, "x", "y", resource=OTHER)
    limits = {R: 2, OTHER: 1}
    two = Pod("p", [Container("one", limits), Container("two", limits)])
    admitted = await kubelet.admit(two)
    assert (admitted.name, admitted.uid) == ("p", two.uid)
    assert sorted(chain(*plugin.allocated)) == list("abcd")
    assert sorted(other.allocated) == [["x"], ["y"]]
    for container, ids, other_ids in zip(("one", "two"), plugin.allocated, other.allocated, strict=True):
        allocation = admitted.containers[container]
        assert allocation.device_ids == {R: tuple(ids), OTHER: tuple(other_ids)}
        assert allocation.envs == {R: ",".join(ids), OTHER: other_ids[0]}
        assert kubelet.allocated(R).items() >= dict.fromkeys(ids, ("p", container)).items()
    assert set(kubelet.allocated(OTHER)) == {"x", "y"}
    assert (kubelet.resource(R).capacity, kubelet.resource(R).allocatable) == (4, 4)
    assert plugin.preference_requests == []


async def test_pod_is_rejected_if_the_plugin_has_no_preference_to_tell(kubelet: Kubelet, plugins: Plugins) -> None:
    """The message has the plugin's error, and the devices become free."""
    plugin = await plugins.serve(kubelet, "a", options=PREFERS)
    plugin.hooks["GetPreferredAllocation"] = fail("not now")
    failed = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = not now"
    assert await rejection(kubelet, pod("p")) == failed
    plugin.hooks.clear()
    plugin.preferred = None  # an answer without a preference
    await kubelet.admit(pod("q"))
    assert plugin.allocated[-1] == ["a"]


async def test_rejected_pod_frees_the_devices_of_its_other_containers(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "a")
    await plugins.serve(kubelet, resource=OTHER)
    await rejection(kubelet, Pod("p", [Container("one", {R: 1}), Container("two", {OTHER: 1})]))
    assert kubelet.allocated(R) == {}
    await kubelet.admit(pod("q"))
    assert plugin.allocated == [["a"], ["a"]]


async def test_seed_determines_the_devices(kubelet_dir: str, plugins: Plugins) -> None:
    """A pod that was finished does not exist for the next kubelet either."""
    allocations = []
    for seed in (1, 1, 2):
        async with Kubelet(kubelet_dir, seed=seed) as kubelet:
            plugin = await plugins.serve(kubelet, *(f"d{n}" for n in range(30)))
            await kubelet.admit(pod("p", 10))
            await kubelet.finish(pod("p", 10))
        allocations.append(plugin.allocated)
        await plugins.stop()
    assert allocations[0] == allocations[1] != allocations[2]


async def test_response_without_containers_leaks_the_devices(kubelet: Kubelet, plugins: Plugins) -> None:
    """The pod is rejected, and the selected devices stay in use until a pod ends."""
    plugin = await plugins.serve(kubelet, "a", "b")
    await kubelet.admit(pod("first"))
    plugin.response = pb.AllocateResponse()
    assert (await rejection(kubelet, pod("p"))).startswith("no containers return in allocation response")
    plugin.response = None
    assert "Requested: 1, Available: 0" in await rejection(kubelet, pod("q"))
    await kubelet.finish(pod("first"))
    assert len((await kubelet.admit(pod("r", 2))).containers["main"].device_ids[R]) == 2


async def test_stopped_kubelet_fails_a_pending_admission(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "a")
    plugin.hooks["Allocate"] = hold(asyncio.Event())
    admitting = asyncio.create_task(rejection(kubelet, pod("p")))
    await plugin.called["Allocate"].wait()
    await kubelet.stop()
    assert await admitting == "rpc error: code = Canceled desc = grpc: the client connection is closing"


async def test_cancelled_admission_allocates_nothing(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "a")
    plugin.hooks["Allocate"] = hold(asyncio.Event())
    admitting = asyncio.create_task(kubelet.admit(pod("p")))
    await plugin.called["Allocate"].wait()
    admitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admitting
    assert kubelet.allocated(R) == {}


async def test_pods_are_admitted_one_at_a_time(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "a", "b", "c", options=PRE_STARTS)
    await kubelet.admit(pod("first"))
    plugin.called.clear()
    release = asyncio.Event()
    plugin.hooks["Allocate"] = hold(release)
    admissions = [asyncio.create_task(kubelet.admit(pod(name))) for name in ("p", "q")]
    await plugin.called["Allocate"].wait()
    # This call starts later on the same connection: after its answer, an earlier Allocate has arrived as well.
    await kubelet.start_container(pod("first"), "main")
    assert len(plugin.allocated) == 2
    release.set()
    await asyncio.gather(*admissions)
    assert sorted(chain(*plugin.allocated)) == ["a", "b", "c"]


async def test_checkpoint_lists_devices_by_numa_node(kubelet: Kubelet, plugins: Plugins) -> None:
    """Devices without topology have the key -1; a device with two nodes is listed twice."""
    plugin = await plugins.serve(kubelet, "plain", "near")
    nodes = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1), pb.NUMANode(ID=2)])
    plugin.send([*healthy("plain"), pb.Device(ID="near", health="Healthy", topology=nodes)])
    await kubelet.wait_for(lambda k: k.resource(R).messages == 2)
    admitted = await kubelet.admit(pod("p", 2))
    with open(kubelet.checkpoint_path) as file:  # noqa: ASYNC230
        (entry,) = json.load(file)["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"] == {"-1": ["plain"], "1": ["near"], "2": ["near"]}
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod("p").uid, "main", R)
    assert sorted(admitted.containers["main"].device_ids[R]) == ["near", "plain"]


# -- init containers ------------------------------------------------------------------------------------------------


async def test_containers_reuse_the_devices_of_init_containers(kubelet: Kubelet, plugins: Plugins) -> None:
    """Init containers share devices, app containers do not; three devices suffice for all."""
    plugin = await plugins.serve(kubelet, *"abc", options=PREFERS)
    app = [Container("one", {R: 1}), Container("two", {R: 2})]
    init = [Container("first", {R: 1}), Container("second", {R: 2})]
    admitted = await kubelet.admit(Pod("p", app, init))
    ids = {name: set(allocation.device_ids[R]) for name, allocation in admitted.containers.items()}
    assert ids["first"] < ids["second"]
    assert ids["one"] < ids["second"]
    assert ids["one"] | ids["two"] == set("abc")
    # A preference is requested only if reuse does not suffice ("one"); reused devices must be included.
    assert [request.allocation_size for request in plugin.preference_requests] == [1, 2, 2]
    assert set(plugin.preference_requests[1].must_include_deviceIDs) == ids["first"]
    assert set(plugin.preference_requests[1].available_deviceIDs) == set("abc")
    assert set(plugin.preference_requests[2].must_include_deviceIDs) == ids["second"] - ids["one"]


async def test_sidecar_keeps_its_devices(kubelet: Kubelet, plugins: Plugins) -> None:
    """It may reuse an init container's devices, and no other container reuses them then."""
    await plugins.serve(kubelet, "a", "b")
    init = [Container("init", {R: 1}), Container("sidecar", {R: 1}, restartable=True)]
    admitted = await kubelet.admit(Pod("p", [Container("main", {R: 1})], init))
    ids = {name: allocation.device_ids[R] for name, allocation in admitted.containers.items()}
    assert ids["init"] == ids["sidecar"]
    assert ids["sidecar"] != ids["main"]


# -- the end of a pod, and restarts -----------------------------------------------------------------------------------


async def test_new_kubelet_object_keeps_the_pods_of_the_checkpoint(kubelet: Kubelet, plugins: Plugins) -> None:
    """Their names are unknown until they are admitted again. They end by ``finish``, as all pods do."""
    await plugins.serve(kubelet, "a", "b", options=PRE_STARTS)
    before = await kubelet.admit(pod("p"))
    await kubelet.admit(pod("q"))
    await kubelet.stop()
    await plugins.stop()
    async with Kubelet(kubelet.directory) as successor:
        assert set(successor.allocated(R).values()) == {(pod("p").uid, "main"), (pod("q").uid, "main")}
        plugin = await plugins.serve(successor, "a", "b", options=PRE_STARTS)
        assert "Available: 0" in await rejection(successor, pod("more"))
        assert await successor.start_container(pod("p"), "main") == before.containers["main"]
        assert plugin.allocated == []
        await successor.finish(pod("q"))
        assert list(successor.allocated(R).values()) == [("p", "main")]


async def test_forgotten_resource_in_use_is_unregistered(
    timed_kubelet: Kubelet, plugins: Plugins, clock: Clock
) -> None:
    """Pods are rejected, and containers do not start, because a pod still has a device of the resource."""
    kubelet = timed_kubelet
    await plugins.serve(kubelet, "a")
    await kubelet.admit(pod("p"))
    await plugins.stop()
    await kubelet.wait_for(lambda k: not k.resource(R).connected)
    assert await rejection(kubelet, pod("q")) == NO_HEALTHY
    clock.now += 301
    assert await rejection(kubelet, pod("q")) == f"cannot allocate unregistered device {R}"
    assert await start_error(kubelet, pod("p")) == f"endpoint not found in cache for a registered resource: {R}"


# -- container start ------------------------------------------------------------------------------------------------


async def test_container_start_can_be_repeated(kubelet: Kubelet, plugins: Plugins) -> None:
    """Each start calls PreStartContainer with the container's IDs and a deadline of 30 s, and keeps the allocation."""
    plugin = await plugins.serve(kubelet, "a", "b", "c", options=PRE_STARTS)
    admitted = await kubelet.admit(pod("p", 2))
    plugin.hooks["PreStartContainer"] = fail("not ready")
    failed = "device plugin PreStartContainer rpc failed with err: rpc error: code = Internal desc = not ready"
    assert await start_error(kubelet, pod("p", 2)) == failed
    plugin.hooks.clear()
    assert await kubelet.start_container(pod("p", 2), "main") == admitted.containers["main"]
    assert [sorted(ids) for ids in plugin.pre_started] == [sorted(plugin.allocated[0])] * 2
    assert 20 < plugin.pre_start_seconds < 40
    assert len(plugin.allocated) == 1


async def test_container_start_allocates_if_the_plugin_registered_after_admission(
    kubelet: Kubelet, plugins: Plugins
) -> None:
    """Until then the pod has no devices. PreStartContainer requires the IDs before any are allocated."""
    assert (await kubelet.admit(pod("p"))).containers["main"].device_ids == {}
    plugin = await plugins.serve(kubelet, "a", options=PRE_STARTS)
    assert await start_error(kubelet, pod("p")) == (
        f"no devices found allocated in local cache for pod {pod('p').uid}, container main, resource {R}"
    )
    await plugins.serve(kubelet, "a")
    assert (await kubelet.start_container(pod("p"), "main")).device_ids == {R: ("a",)}
    assert plugin.pre_started == []
