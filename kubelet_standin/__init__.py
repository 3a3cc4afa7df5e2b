"""A stand-in kubelet to test device plugins against: no cluster, no root, no containers.

:class:`Kubelet` is a kubelet's device manager on real unix sockets. It serves ``kubelet.sock``, dials the plugins that
register, follows their ListAndWatch streams, admits pods and keeps the checkpoint, like the kubelet that
:class:`KubeletVersion` selects, the newest by default. The plugin can be any program that serves the device plugin API
v1beta1 on a unix socket.
There are three ways to use it:

- ``kubelet-standin DIR`` runs it as a command, for plugins in any language: it prints a line for each event and
  reads commands from standard input. See the README.
- :mod:`kubelet_standin.pytest_plugin` has pytest fixtures, which pytest loads by itself.
- The class itself::

    import asyncio
    import tempfile

    import grpc

    from kubelet_standin.api import deviceplugin_pb2 as pb, deviceplugin_pb2_grpc as rpc
    from kubelet_standin import Container, Kubelet, Pod

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
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:     # a socket path has at most 107 bytes
            async with Kubelet(directory) as kubelet:
                plugin = await start_plugin(kubelet, "first.sock")
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 2)

                pod = Pod("game", [Container("main", {GPU: 1})])
                admitted = await kubelet.admit(pod)                    # Allocate
                assert admitted.containers["main"].envs["GPU"] in ("a", "b")
                await kubelet.start_container(pod, "main")             # PreStartContainer

                await kubelet.restart()                                # removes the sockets of all plugins
                assert kubelet.resource(GPU).capacity == 0
                await plugin.stop(None)
                plugin = await start_plugin(kubelet, "second.sock")
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 2)
                assert await kubelet.admit(pod) == admitted            # from the checkpoint, without a call
                await kubelet.finish(pod)

                await plugin.stop(None)
                await kubelet.wait_for(lambda k: k.resource(GPU).allocatable == 0)
                assert kubelet.resource(GPU).capacity == 2             # for five more minutes

    asyncio.run(main())

:meth:`Kubelet.wait_for` does not poll: it evaluates its condition after each change, and its TimeoutError describes the
kubelet's state. ``Kubelet.faults`` injects faults (a Register call that hangs, garbage on the socket), ``drop_streams``
and ``stop`` break connections, and ``version=KubeletVersion.V1_36`` has a bug that plugins still meet in the field.
``seed`` determines everything that is random. ``on_event`` receives each :class:`Event`.

:mod:`kubelet_standin.podresources_server` serves the podresources API, which returns the devices of each pod.
:mod:`kubelet_standin.apiserver` has a stand-in API server.

:mod:`kubelet_standin.dra_kubelet` has the kubelet's other half, for DRA drivers: :class:`DraKubelet`.

Not modelled: the topology manager (its policy is ``none``), and running containers: when a pod is admitted again, the
kubelet treats it as after a reboot.

The package loads its modules on first use, so that pytest can load the fixtures without gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubelet_standin.dra_kubelet import DraClaim, DraKubelet, DraPod, DraTimings
    from kubelet_standin.events import Event
    from kubelet_standin.faults import Faults
    from kubelet_standin.kubelet import Kubelet
    from kubelet_standin.pods import (
        AdmissionError,
        AdmittedPod,
        Container,
        ContainerAllocation,
        DeviceSpec,
        Mount,
        Pod,
    )
    from kubelet_standin.registration import Registration
    from kubelet_standin.resources import ResourceView
    from kubelet_standin.versions import KubeletVersion

__version__ = "0.1.0"

__all__ = [
    "AdmissionError",
    "AdmittedPod",
    "Container",
    "ContainerAllocation",
    "DeviceSpec",
    "DraClaim",
    "DraKubelet",
    "DraPod",
    "DraTimings",
    "Event",
    "Faults",
    "Kubelet",
    "KubeletVersion",
    "Mount",
    "Pod",
    "Registration",
    "ResourceView",
]

_MODULES = {
    "DraClaim": "dra_kubelet",
    "DraKubelet": "dra_kubelet",
    "DraPod": "dra_kubelet",
    "DraTimings": "dra_kubelet",
    "Event": "events",
    "Faults": "faults",
    "Kubelet": "kubelet",
    "KubeletVersion": "versions",
    "Registration": "registration",
    "ResourceView": "resources",
}
"""The modules of the names; those that are not listed are in ``pods``."""


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'pods')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of this module, including those that are not loaded yet."""
    return sorted({*globals(), *__all__})
