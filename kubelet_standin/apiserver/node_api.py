"""The requests of the stand-in kubelet to the stand-in API server: it deletes ResourceSlices, and reads claims.

::

    api = NodeApi(server, "worker")
    async with DraKubelet(directory, wipe=api.wipe, fetch=api.fetch) as kubelet:
        ...
"""

from __future__ import annotations

from typing import Protocol

from kubelet_standin.apiserver.objects import Objects
from kubelet_standin.dra.claims import DraClaim

API = "/apis/resource.k8s.io/v1"


class Server(Protocol):
    """An API server, such as ``ApiServer``."""

    @property
    def running(self) -> bool:
        """Whether it answers."""

    @property
    def objects(self) -> Objects:
        """The administrator's requests."""


class NodeApi:
    """The API server as the kubelet of a node uses it. All methods raise ConnectionRefusedError while it is stopped."""

    def __init__(self, server: Server, node: str) -> None:
        self._server = server
        self._node = node

    @property
    def _objects(self) -> Objects:
        if not self._server.running:
            raise ConnectionRefusedError("the API server is stopped")
        return self._server.objects

    async def wipe(self, driver: str) -> None:
        """Delete the ResourceSlices of a driver on the node, or with an empty name those of all drivers."""
        selector = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        self._objects.delete_collection(f"{API}/resourceslices", selector)

    async def fetch(self, namespace: str, name: str) -> DraClaim:
        """Return a claim. Raises StatusError, and ClaimsError if it is not allocated."""
        return DraClaim.from_object(self._objects.get(f"{API}/namespaces/{namespace}/resourceclaims/{name}"))
