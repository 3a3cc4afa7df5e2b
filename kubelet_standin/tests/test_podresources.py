"""The podresources API of the stand-in kubelet: List and Get have the pods with their devices."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from kubelet_standin import Container, Kubelet, Pod, PodResources
from kubelet_standin.api import deviceplugin_pb2 as pb_plugin
from kubelet_standin.api import podresources_pb2 as pb
from kubelet_standin.api import podresources_pb2_grpc as rpc
from kubelet_standin.tests.stub import OTHER, Plugins, R, healthy


@contextlib.asynccontextmanager
async def asking(kubelet: Kubelet) -> AsyncIterator[rpc.PodResourcesListerAsyncStub]:
    """Serve the API of a kubelet, in which only the pod "game" is not in the default namespace; connect to it."""
    path = f"{kubelet.directory}/pods.sock"
    async with PodResources(kubelet, path, {"game": "games"}), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield rpc.PodResourcesListerStub(channel)


def containers(pod: pb.PodResources) -> dict[str, dict[str, list[str]]]:
    """Return the device IDs by container and resource."""
    return {each.name: {it.resource_name: sorted(it.device_ids) for it in each.devices} for each in pod.containers}


async def test_list_and_get_return_active_pods_with_their_devices(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = await plugins.serve(kubelet, "a", "b", "c")
    await plugins.serve(kubelet, "x", name="other.sock", resource=OTHER)
    game = Pod("game", [Container("first", {R: 2, OTHER: 1}), Container("second", {R: 1})])
    await kubelet.admit(game)
    allocated = {device: name for device, (_, name) in kubelet.allocated(R).items()}
    expected = {
        "first": {R: sorted(device for device in allocated if allocated[device] == "first"), OTHER: ["x"]},
        "second": {R: [device for device in allocated if allocated[device] == "second"]},
    }
    async with asking(kubelet) as stub:
        (listed,) = (await stub.List(pb.ListPodResourcesRequest())).pod_resources
        assert (listed.namespace, listed.name, containers(listed)) == ("games", "game", expected)
        got = await stub.Get(pb.GetPodResourcesRequest(pod_namespace="games", pod_name="game"))
        assert got.pod_resources == listed
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await stub.Get(pb.GetPodResourcesRequest(pod_namespace="default", pod_name="game"))
        plugin.send([*healthy("a", "b"), pb_plugin.Device(ID="c", health="Unhealthy")])
        await kubelet.wait_for(lambda k: k.resource(R).allocatable == 2)
        allocatable = (await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())).devices
        assert sorted(device for each in allocatable for device in each.device_ids) == ["a", "b", "x"]
        await kubelet.finish(game)
        assert not (await stub.List(pb.ListPodResourcesRequest())).pod_resources
        await kubelet.stop()
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await stub.List(pb.ListPodResourcesRequest())


async def test_an_init_container_is_listed_if_it_is_a_sidecar(kubelet: Kubelet, plugins: Plugins) -> None:
    await plugins.serve(kubelet, "a", "b")
    init = [Container("init", {R: 1}), Container("sidecar", {R: 1}, restartable=True)]
    await kubelet.admit(Pod("game", [Container("main")], init))
    async with asking(kubelet) as stub:
        (listed,) = (await stub.List(pb.ListPodResourcesRequest())).pod_resources
        assert containers(listed).keys() == {"sidecar"}
