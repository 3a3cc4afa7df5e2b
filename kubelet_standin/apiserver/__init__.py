"""A stand-in API server to test DRA drivers and other clients against: no cluster, no etcd.

:class:`ApiServer` serves Kubernetes objects on a real TCP socket, with TLS if required: nodes, pods, Events,
ResourceSlices, ResourceClaims and DeviceClasses (``kinds``). It has GET, LIST with field selectors, WATCH with
bookmarks, POST, PUT, PATCH, DELETE with preconditions, and DELETE of a collection, and answers as kube-apiserver does:
404, 409 for a conflict, 410 after :meth:`ApiServer.compact`, 422 for a ResourceSlice that breaks a limit. The same
checks run with it and with kube-apiserver.

::

    import asyncio

    from kubelet_standin.apiserver import ApiServer, Throttle

    SLICES = "/apis/resource.k8s.io/v1/resourceslices"

    async def main():
        async with ApiServer() as server:
            server.objects.create("/api/v1/nodes", {"metadata": {"name": "worker"}})
            ...                                                       # your driver is a client of server.url

            throttled = server.faults.add(Throttle(retry_after=1.0), verb="create", resource="resourceslices", times=2)
            ...                                                       # the driver publishes its slices
            await server.wait_for(lambda s: s.objects.list(SLICES))
            assert throttled.hits == 2

            server.objects.delete_collection(SLICES, "spec.nodeName=worker")     # a kubelet starts
            await server.wait_for(lambda s: s.objects.list(SLICES))
            assert server.count("update", "resourceslices") == 0      # nothing was written in vain

    asyncio.run(main())

- ``server.objects`` reads and writes objects as the administrator: without HTTP, faults, tokens and rules.
- ``server.access`` has the tokens (401) and rules (403). ``write_service_account`` writes the files that the kubelet
  mounts into a pod, and ``environment`` has its variables.
- ``server.faults`` injects faults: :class:`Hang`, :class:`Cut`, :class:`Garbage`, :class:`RawBytes`,
  :class:`Throttle`, :class:`Refuse`, and watches that send nothing. ``stop``, ``restart``, ``drop_connections`` and
  ``end_watches`` end connections.
- ``server.log`` has the requests, ``server.count`` counts them, and :meth:`ApiServer.wait_for` waits for a condition
  without polling.
- ``minor`` is the version, ``drop_fields`` are fields of feature gates that are off.

Not modelled: lists in pages, finalizers, generated names, strategic merge patches and server-side apply, label
selectors, admission, defaults except for the time of a taint, unknown fields, which kube-apiserver drops, API versions
other than v1, and the validation of anything but ResourceSlices and names.
"""

from __future__ import annotations

from kubelet_standin.apiserver.faults import Cut, Garbage, Hang, RawBytes, Refuse, Throttle
from kubelet_standin.apiserver.server import ApiServer
from kubelet_standin.apiserver.statuses import StatusError

__all__ = ["ApiServer", "Cut", "Garbage", "Hang", "RawBytes", "Refuse", "StatusError", "Throttle"]
