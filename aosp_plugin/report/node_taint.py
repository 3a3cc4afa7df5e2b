"""Removes the startup taint from this node's Node object when the plugin's resources are ready.

A kubelet adds the taint with ``--register-with-taints`` when it creates the Node object, but not if the object exists
(pkg/kubelet/kubelet_node_status.go ``tryRegisterWithAPIServer``), as after a reboot. The plugin removes the taint, and
never adds it: the scheduler knows the available devices anyway, and a taint that comes back would affect pods without
a phone.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import NODES, InvalidObjectError, StoredObject, object_path
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timing import CLOCK, DEFAULT, Clock

SETTLED = 600.0
"""Seconds between two requests of a Node that is done: it may have been deleted, and created again with the taint."""

LOG = logging.getLogger(__name__)


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] = []


class _Status(msgspec.Struct):
    allocatable: dict[str, str] = {}


class Node(StoredObject, frozen=True):
    """The fields of a Node object that are used here."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def is_ready(server: ResourceServer) -> bool:
    """Return whether the resource is ready and has healthy devices, of which the kubelet or the API server knows.

    Where the kubelet does not tell how many devices it has, the Node object alone shows them.
    """
    if not server.ready or not server.inventory.snapshot.healthy:
        return False
    if server.driver is not None:
        return server.driver.slices_confirmed > 0
    return server.confirmation.allocatable != 0


class StartupTaint:
    """Removes one taint from one Node. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        key: str,
        servers: Sequence[ResourceServer],
        *,
        recheck: float = DEFAULT.recheck,
        settled: float = SETTLED,
        clock: Clock = CLOCK,
    ) -> None:
        """``key`` is the key of the taint, which may have any value and effect."""
        self._api = api
        self._path = object_path(NODES, node_name)
        self._key = key
        self._servers = servers
        self._recheck = recheck
        self._settled = settled
        self._clock = clock
        self._check_at = 0.0

    async def write(self) -> None:
        """Remove the taint if all resources are ready. Raises ApiError."""
        if not all(map(is_ready, self._servers)):
            self._check_at = 0.0  # check at the next registration: the kubelet may have created its Node again
        elif self._clock() >= self._check_at:
            done = await self._check()
            if all(map(is_ready, self._servers)):
                self._check_at = self._clock() + (self._settled if done else self._recheck)

    async def _check(self) -> bool:
        """Remove the taint if the Node has the devices; return whether the Node object no longer has the taint."""
        node = await self._api.get(self._path, Node)
        if not any(taint.get("key") == self._key for taint in node.spec.taints):
            return True
        plugins = [server.resource_name for server in self._servers if server.driver is None]
        if any(node.status.allocatable.get(name, "0") == "0" for name in plugins):  # the scheduler reads these
            return False
        try:
            await self._api.patch(self._path, removal(node, self._key))
        except InvalidObjectError:  # the taints have changed meanwhile
            return False
        LOG.info("startup taint removed", extra={"taint": self._key})
        return True


def removal(node: Node, key: str) -> list[dict[str, Any]]:
    """Return the JSON patch that removes the taints with this key, and fails if the Node or the taints have changed.

    Another client may change the Node at the same time, so the patch tests each taint before it removes it.
    """
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": node.metadata.uid}]
    for index, taint in reversed([*enumerate(node.spec.taints)]):
        if taint.get("key") == key:
            path = f"/spec/taints/{index}"
            patch += [{"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path}]
    return patch
