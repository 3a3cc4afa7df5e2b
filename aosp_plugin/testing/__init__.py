"""A kubelet's device manager to test a device plugin against: no cluster, no root, no container.

:class:`Kubelet` listens on ``kubelet.sock``, dials the plugins that register, follows their ListAndWatch
streams, admits pods and keeps the checkpoint, as the kubelet of a chosen age does (:class:`Behaviour`). It
knows nothing of how the plugin is made: any program that speaks the device plugin API v1beta1 over a unix
socket will do. A test says what happens on the node, and looks at what the kubelet then believes::

    import asyncio
    import tempfile

    import grpc

    from aosp_plugin.framework.api import deviceplugin_pb2 as pb, deviceplugin_pb2_grpc as rpc
    from aosp_plugin.testing import Container, Kubelet, Pod

    GPU = "example.com/gpu"

    class Plugin(rpc.DevicePluginServicer):                     # yours, in any language, in its own process
        async def GetDevicePluginOptions(self, request, context):
            return pb.DevicePluginOptions(pre_start_required=True)

        async def ListAndWatch(self, request, context):
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health="Healthy") for name in ("a", "b")])
            await asyncio.Event().wait()

        async def Allocate(self, request, context):
            ids = request.container_requests[0].devices_ids
            answer = pb.ContainerAllocateResponse(envs={"GPU": ",".join(ids)})
            return pb.AllocateResponse(container_responses=[answer])

        async def PreStartContainer(self, request, context):
            return pb.PreStartContainerResponse()

        async def GetPreferredAllocation(self, request, context):
            return pb.PreferredAllocationResponse()

    async def start_plugin(kubelet, name):
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(Plugin(), server)
        server.add_insecure_port(f"unix:{kubelet.directory}/{name}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{kubelet.socket_path}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=name, resource_name=GPU)
            await rpc.RegistrationStub(channel).Register(request, timeout=15)
        return server

    async def main():
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:     # a socket's path has at most 107 bytes
            async with Kubelet(directory) as kubelet:
                plugin = await start_plugin(kubelet, "first.sock")
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 2)

                pod = Pod("game", [Container("main", {GPU: 1})])
                admitted = await kubelet.admit(pod)                    # Allocate
                assert admitted.containers["main"].envs["GPU"] in ("a", "b")
                await kubelet.start_container(pod, "main")             # PreStartContainer

                await kubelet.restart()                                # sweeps the sockets of all plugins
                assert kubelet.resource(GPU).capacity == 0
                await plugin.stop(None)
                plugin = await start_plugin(kubelet, "second.sock")
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 2)
                assert await kubelet.admit(pod) == admitted            # from the checkpoint, without a call
                await kubelet.finish(pod)

                await plugin.stop(None)
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 0)
                assert kubelet.resource(GPU).capacity == 2             # for five minutes more

    asyncio.run(main())

:meth:`Kubelet.wait_for` does not poll: it asks again whenever something has changed, and when its time is
up, its TimeoutError says what the kubelet knew. ``Kubelet.faults`` breaks the kubelet's side (a Register that
hangs, garbage on the socket), ``drop_streams`` and ``stop`` break connections, ``behaviour=Behaviour.BUGGY``
brings back a bug that plugins still meet in the field. What Go leaves to chance follows from ``seed``.

:mod:`aosp_plugin.testing.podresources` tells over the podresources API which pod has what.

Not modelled: the topology manager (its policy is ``none``), the plugin watcher's ``plugins_registry``, and
whether a container still runs: a pod that is admitted again is treated as after a reboot.
"""

from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.faults import Faults
from aosp_plugin.testing.kubelet import Kubelet
from aosp_plugin.testing.pods import (
    AdmissionError,
    AdmittedPod,
    Container,
    ContainerAllocation,
    DeviceSpec,
    Mount,
    Pod,
)
from aosp_plugin.testing.registration import Registration
from aosp_plugin.testing.resources import ResourceView

__all__ = [
    "AdmissionError",
    "AdmittedPod",
    "Behaviour",
    "Container",
    "ContainerAllocation",
    "DeviceSpec",
    "Faults",
    "Kubelet",
    "Mount",
    "Pod",
    "Registration",
    "ResourceView",
]
