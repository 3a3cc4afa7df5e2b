"""Creates the objects of a simulated fleet in a real API server.

Nodes, plugins and slices are created by requests, and so is the first phone's pod with its claim. The other pods and
claims are copies of these, as the API server has stored them, with other names, written into etcd: tens of thousands of
requests would require minutes.
"""

from __future__ import annotations

import contextlib
import copy
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.dra.driver_names import block_of, pool_name
from tests.e2e.cluster.api import APPS, CORE, ApiError
from tests.e2e.cluster.dra import API, SLICES
from tests.e2e.fleet import objects, objects_pb2, stored

if TYPE_CHECKING:
    from tests.e2e.cluster.api import Api
    from tests.e2e.fleet.objects import Fleet

_TOGETHER: Final = 8


def load(api: Api, fleet: Fleet) -> None:
    """Create all objects; without pods of phones, there are none of the plugin either."""
    with ThreadPoolExecutor(_TOGETHER) as executor:
        list(executor.map(lambda number: _node(api, fleet, number), range(fleet.nodes)))
    if not fleet.pods:
        return
    for namespace in (*fleet.namespaces, objects.SYSTEM):
        with contextlib.suppress(ApiError):  # it exists
            api.create(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
        with contextlib.suppress(ApiError):
            api.create(f"{CORE}/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    api.create(f"{APPS}/namespaces/{objects.SYSTEM}/daemonsets", objects.daemon_set())
    for number in range(fleet.nodes):
        if not fleet.lost(number):
            _with_status(api, f"{CORE}/namespaces/{objects.SYSTEM}/pods", objects.plugin_pod(number))
    body = next(objects.phone_pods(fleet, 0))
    namespace = body["metadata"]["namespace"]
    pod = _with_status(api, f"{CORE}/namespaces/{namespace}/pods", body)
    if fleet.dra:
        _with_status(api, f"{API}/namespaces/{namespace}/resourceclaims", objects.claim(pod))
    _copy(fleet, namespace, pod["metadata"]["name"])


def _node(api: Api, fleet: Fleet, number: int) -> None:
    """Create a node and its slices."""
    node = api.create(f"{CORE}/nodes", objects.node(fleet, number))
    if fleet.dra and not fleet.lost(number):
        for wanted in objects.slices(fleet, number, node["metadata"]["uid"]):
            api.create(SLICES, wanted)


def _with_status(api: Api, collection: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create an object, and then write its status, which the API server ignores in new objects."""
    name = api.create(collection, body)["metadata"]["name"]
    return api.patch(f"{collection}/{name}/status", {"status": body["status"]})


def _copy(fleet: Fleet, namespace: str, name: str) -> None:
    """Copy the first pod and its claim for all other phones."""
    envelope, pod = stored.read("pods", namespace, name, objects_pb2.Pod)
    puts = []
    template = None
    if fleet.dra:
        template = stored.read("resourceclaims", namespace, f"{name}-phone", objects_pb2.ResourceClaim)
    for number in range(fleet.nodes):
        for index, body in enumerate(objects.phone_pods(fleet, number)):
            own, metadata = copy.deepcopy(pod), body["metadata"]
            own.metadata.name, own.metadata.namespace = metadata["name"], metadata["namespace"]
            own.metadata.uid = str(uuid.uuid4())
            own.spec.node_name = objects.node_name(number)
            if template is not None:
                claim = copy.deepcopy(template[1])
                _place(claim, own, number, f"phone{index}")
                own.status.resource_claim_statuses[0].resource_claim_name = claim.metadata.name
                puts.append(stored.put("resourceclaims", template[0], claim))
            puts.append(stored.put("pods", envelope, own))
    stored.write(puts)


def _place(claim: objects_pb2.ResourceClaim, pod: objects_pb2.Pod, number: int, phone: str) -> None:
    """Make a claim that of a pod, with a phone of its node."""
    metadata, device = claim.metadata, claim.status.allocation.devices.results[0]
    metadata.name, metadata.namespace = f"{pod.metadata.name}-phone", pod.metadata.namespace
    metadata.uid = str(uuid.uuid4())
    metadata.owner_references[0].name, metadata.owner_references[0].uid = pod.metadata.name, pod.metadata.uid
    consumer = claim.status.reserved_for[0]
    consumer.name, consumer.uid = pod.metadata.name, pod.metadata.uid
    device.device = phone
    device.pool = pool_name(objects.node_name(number), block_of(phone))
