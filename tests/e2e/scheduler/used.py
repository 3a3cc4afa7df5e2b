"""Phones that pods have before the measurement: a pod and its claim that the scheduler has bound, and copies of both.

The copies are written into etcd, because binding 100,000 pods would take hours.
"""

from __future__ import annotations

import copy
import uuid
from typing import TYPE_CHECKING, Final

from aosp_plugin.framework.dra.driver_names import block_of, pool_name
from tests.e2e.fleet import objects_pb2, stored
from tests.e2e.fleet.objects import Fleet, node_name
from tests.e2e.scheduler.objects import Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE: Final = "used"
NAME: Final = "used"
_ID_LENGTH: Final = 36


def fill(fleet: Fleet, variant: Variant, used: int) -> None:
    """Replace the bound pod NAME by copies of it, which have ``used`` phones of each node.

    API server and etcd have to run, and nothing that reacts to a deletion.
    """
    envelope, pod = stored.read("pods", NAMESPACE, NAME, objects_pb2.Pod)
    stored.delete("pods", NAMESPACE, NAME)
    template = None
    if variant.dra:
        claim_name = pod.status.resource_claim_statuses[0].resource_claim_name
        template = stored.read("resourceclaims", NAMESPACE, claim_name, objects_pb2.ResourceClaim)
        stored.delete("resourceclaims", NAMESPACE, claim_name)
    for number in range(fleet.nodes):
        puts = []
        for own, index in _pods(pod, number, used):
            if template is not None:
                claim = claim_of(own, template[1], variant, number, index)
                own.status.resource_claim_statuses[0].resource_claim_name = claim.metadata.name
                puts.append(stored.put("resourceclaims", template[0], claim))
            puts.append(stored.put("pods", envelope, own))
        stored.write(puts)


def variant_of(variant: Variant) -> Variant:
    """Return how the pods with used phones got them."""
    return Variant.CLAIM if variant is Variant.EXTENDED else variant


def claim_of(
    pod: objects_pb2.Pod, template: objects_pb2.ResourceClaim, variant: Variant, number: int, index: int
) -> objects_pb2.ResourceClaim:
    """Return a copy of a claim as that of a pod, with the phone ``index`` of its node, or a share of its device."""
    claim = copy.deepcopy(template)
    metadata = claim.metadata
    metadata.name, metadata.uid = f"{pod.metadata.name}-phone", str(uuid.uuid4())
    metadata.owner_references[0].name, metadata.owner_references[0].uid = pod.metadata.name, pod.metadata.uid
    consumer = claim.status.reserved_for[0]
    consumer.name, consumer.uid = pod.metadata.name, pod.metadata.uid
    result = claim.status.allocation.devices.results[0]
    if variant is not Variant.CAPACITY:
        result.device = f"phone{index}"
        result.pool = pool_name(node_name(number), block_of(result.device))
        return claim
    result.pool = pool_name(node_name(number), "00000")
    claim.status.allocation.devices.results[0].ParseFromString(_with_share(result.SerializeToString()))
    return claim


def _with_share(result: bytes) -> bytes:
    """Return an allocated share of a device with another random ID: a string of a fixed length, field 9 (shareID)."""
    tag = bytes((9 << 3 | 2, _ID_LENGTH))
    start = result.index(tag) + len(tag)
    return result[:start] + str(uuid.uuid4()).encode() + result[start + _ID_LENGTH :]


def _pods(pod: objects_pb2.Pod, number: int, used: int) -> Iterator[tuple[objects_pb2.Pod, int]]:
    """Yield copies of a pod on a node, and their numbers."""
    for index in range(used):
        own = copy.deepcopy(pod)
        own.metadata.name, own.metadata.uid = f"{NAME}-{number}-{index}", str(uuid.uuid4())
        own.spec.node_name = node_name(number)
        yield own, index
