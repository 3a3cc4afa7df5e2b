"""The requests of the stand-in kubelet to an API server: it deletes ResourceSlices, and reads claims.

::

    api = NodeApi(server.url, "worker")
    async with DraKubelet(directory, wipe=api.wipe, fetch=api.fetch) as kubelet:
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp

from kubelet_standin.dra.claims import DraClaim

if TYPE_CHECKING:
    import ssl

API = "/apis/resource.k8s.io/v1"
TIMEOUT = 10.0
"""Seconds for each request."""


class NodeApi:
    """The API server as a kubelet sees it. All methods raise aiohttp.ClientError and TimeoutError."""

    def __init__(
        self, url: str, node: str, *, token: str = "", tls: ssl.SSLContext | None = None, timeout: float = TIMEOUT
    ) -> None:
        """``url`` is that of the API server, without a path; ``token`` and ``tls`` are required if it asks for them."""
        self._url = url
        self._node = node
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls if tls is not None else True
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def wipe(self, driver: str) -> None:
        """Delete the ResourceSlices of a driver on the node, or with an empty name those of all drivers."""
        selector = f"spec.nodeName={self._node}" + (f",spec.driver={driver}" if driver else "")
        await self._request("DELETE", f"{API}/resourceslices", {"fieldSelector": selector})

    async def fetch(self, namespace: str, name: str) -> DraClaim:
        """Return a claim. Raises ClaimsError if it is not allocated."""
        path = f"{API}/namespaces/{namespace}/resourceclaims/{name}"
        return DraClaim.from_object(await self._request("GET", path, {}))

    async def _request(self, method: str, path: str, query: dict[str, str]) -> Any:
        async with (
            aiohttp.ClientSession(self._url, headers=self._headers, timeout=self._timeout) as session,
            session.request(method, path, params=query, ssl=self._tls, raise_for_status=True) as response,
        ):
            return await response.json()
