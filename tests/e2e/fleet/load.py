"""Creates the objects of a simulated fleet in a real API server.

Nodes, plugins and slices are created by requests, and so is the first phone's pod with its claim. The other pods and
claims are copies of these, as the API server has stored them, with other names, written into etcd: tens of thousands of
requests would require minutes.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.apiserver.protocol import NODES, RESOURCE_API, RESOURCE_SLICES, ConflictError
from aosp_plugin.framework.dra.driver_names import block_of, pool_name
from tests.e2e.fleet import objects, objects_pb2, stored

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aosp_plugin.framework.apiserver.client import ApiClient
    from tests.e2e.fleet.objects import Fleet

_TOGETHER: Final = 8
_CORE: Final = "/api/v1/namespaces"
_DAEMON_SETS: Final = f"/apis/apps/v1/namespaces/{objects.SYSTEM}/daemonsets"


async def load(client: ApiClient, fleet: Fleet) -> None:
    """Create all objects."""
    for namespace in (*fleet.namespaces, objects.SYSTEM):
        await _exists(client, _CORE, {"metadata": {"name": namespace}})
        await _exists(client, f"{_CORE}/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    await client.create(_DAEMON_SETS, objects.daemon_set())
    limit = asyncio.Semaphore(_TOGETHER)
    async with asyncio.TaskGroup() as tasks:
        for number in range(fleet.nodes):
            tasks.create_task(_limited(limit, _node(client, fleet, number)))
    namespace, body, status = next(objects.phone_pods(fleet, 0))
    pod = await _with_status(client, f"{_CORE}/{namespace}/pods", body, status)
    if fleet.dra:
        claims = f"{RESOURCE_API}/namespaces/{namespace}/resourceclaims"
        await _with_status(client, claims, *objects.claim(0, 0, pod))
    await asyncio.to_thread(_copy, fleet, namespace, pod["metadata"]["name"])


async def _limited(limit: asyncio.Semaphore, work: Coroutine[None, None, None]) -> None:
    async with limit:
        await work


async def _node(client: ApiClient, fleet: Fleet, number: int) -> None:
    """Create a node, its plugin and its slices."""
    node = await client.create(NODES, objects.node(fleet, number))
    if objects.lost(number):
        return
    await _with_status(client, f"{_CORE}/{objects.SYSTEM}/pods", *objects.plugin_pod(number))
    if fleet.dra:
        for wanted in objects.slices(fleet, number, node["metadata"]["uid"]):
            await client.create(RESOURCE_SLICES, wanted)


async def _with_status(
    client: ApiClient, collection: str, body: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    """Create an object, and then write its status, which the API server ignores in new objects."""
    created = await client.create(collection, body)
    changed = created | {"status": created.get("status", {}) | status}
    return await client.update(f"{collection}/{created['metadata']['name']}/status", changed)


async def _exists(client: ApiClient, collection: str, body: dict[str, Any]) -> None:
    try:
        await client.create(collection, body)
    except ConflictError:
        return


def _copy(fleet: Fleet, namespace: str, name: str) -> None:
    """Copy the first pod and its claim for all other phones."""
    envelope, pod = stored.read("pods", namespace, name, objects_pb2.Pod)
    pods, claims = [], []
    template = None
    if fleet.dra:
        template = stored.read("resourceclaims", namespace, f"{name}-phone", objects_pb2.ResourceClaim)
    for number in range(fleet.nodes):
        for index, (where, body, _) in enumerate(objects.phone_pods(fleet, number)):
            own, metadata = copy.deepcopy(pod), body["metadata"]
            own.metadata.name, own.metadata.namespace = metadata["name"], where
            own.metadata.uid = str(uuid.uuid4())
            own.spec.node_name = objects.node_name(number)
            if template is not None:
                claim = copy.deepcopy(template[1])
                _place(claim, own, number, index)
                own.status.resource_claim_statuses[0].resource_claim_name = claim.metadata.name
                claims.append(stored.put("resourceclaims", template[0], claim))
            pods.append(stored.put("pods", envelope, own))
    stored.write(pods)
    stored.write(claims)


def _place(claim: objects_pb2.ResourceClaim, pod: objects_pb2.Pod, number: int, index: int) -> None:
    """Make a claim that of a pod, with a phone of its node."""
    metadata, device = claim.metadata, claim.status.allocation.devices.results[0]
    metadata.name, metadata.namespace, metadata.uid = f"{pod.metadata.name}-phone", pod.metadata.namespace, ""
    metadata.uid = str(uuid.uuid4())
    metadata.owner_references[0].name, metadata.owner_references[0].uid = pod.metadata.name, pod.metadata.uid
    consumer = claim.status.reserved_for[0]
    consumer.name, consumer.uid = pod.metadata.name, pod.metadata.uid
    device.device = f"phone{index}"
    device.pool = pool_name(objects.node_name(number), block_of(device.device))
