"""The DRA half of the stand-in kubelet: plugin watcher, DRA drivers and the claims of pods, on real unix sockets.

::

    async with DraKubelet(f"{root}/plugins_registry") as kubelet:
        process = await asyncio.create_subprocess_exec("my-driver", "--registry", kubelet.directory)
        await kubelet.wait_for(lambda k: k.connected("gpu.example.com"))
        pod = DraPod("game", (DraClaim("gpu", "uid-1", ("gpu.example.com",)),))
        await kubelet.prepare(pod)
        assert kubelet.cdi_devices(pod)
        await kubelet.unprepare(pod)

Modelled, with the differences between the versions (``KubeletVersion``): the directory ``plugins_registry``, which is
read at the start and followed by inotify; registration with its deadlines, its checks and the pauses after failures;
one connection for each registered socket; several instances of one driver; Prepare and Unprepare with the kubelet's
checks of the answers; claims that pods share; the checkpoint, which does not say which claims are prepared, so that a
restarted kubelet prepares them again where a sandbox is made; health streams; ResourceSlices that are deleted when a
kubelet starts, and when a driver is away for too long.

Not modelled: containers and sandboxes, pods that try again or are gone, idle connections (closed after 30 minutes), the
checkpoint's file, feature gates but ResourceHealthStatus, ``SkipNodeOperations``, the kubelet's metrics.
``reservedFor`` is not checked.

``seed`` determines everything that is random. ``wait_for`` does not poll.
"""

from kubelet_standin.dra.claims import ClaimsError, DraClaim, DraPod
from kubelet_standin.dra.kubelet import DraKubelet
from kubelet_standin.dra.settings import DraTimings

__all__ = ["ClaimsError", "DraClaim", "DraKubelet", "DraPod", "DraTimings"]
