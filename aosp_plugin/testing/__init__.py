"""A kubelet's device manager to test a device plugin against: no cluster, no root, no container.

:class:`Kubelet` listens on ``kubelet.sock``, dials the plugins that register, follows their ListAndWatch
streams, admits pods and keeps the checkpoint, as the kubelet of a chosen age does (:class:`Behaviour`). It
knows nothing of how the plugin is made: any program that speaks the device plugin API v1beta1 over a unix
socket will do. A test says what happens on the node, and looks at what the kubelet then believes::

    import asyncio
    import tempfile

    from aosp_plugin.testing import Container, Kubelet, Pod

    async def main() -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:     # a socket's path has at most 107 bytes
            async with Kubelet(directory) as kubelet:
                plugin = await start_my_plugin(kubelet.directory)      # yours: serves and registers
                await kubelet.wait_for(lambda k: k.resource("example.com/gpu").allocatable == 2)

                pod = Pod("game", [Container("main", {"example.com/gpu": 1})])
                admitted = await kubelet.admit(pod)                    # GetPreferredAllocation, Allocate
                print(admitted.containers["main"].envs)
                await kubelet.start_container(pod, "main")             # PreStartContainer

                await kubelet.restart()                                # the plugin has to register again
                await kubelet.wait_for(lambda k: k.resource("example.com/gpu").allocatable == 2)
                assert await kubelet.admit(pod) == admitted            # from the checkpoint, without a call
                await kubelet.finish(pod)
                await plugin.stop()
                await kubelet.wait_for(lambda k: k.resource("example.com/gpu").allocatable == 0)

    asyncio.run(main())

:meth:`Kubelet.wait_for` does not poll: it asks again whenever something has changed, and when its time is
up, its TimeoutError says what the kubelet knew. ``Kubelet.faults`` breaks the kubelet's side (a Register that
hangs, garbage on the socket), ``drop_streams`` and ``stop`` break connections, ``behaviour=Behaviour.BUGGY``
brings back a bug that plugins still meet in the field. What Go leaves to chance follows from ``seed``.

Not modelled: the topology manager (its policy is ``none``), the plugin watcher's ``plugins_registry``, the
podresources API, and whether a container still runs: a pod that is admitted again is treated as after a
reboot.
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
