"""What the scheduler has allocated, and whether it may be so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.e2e.scheduler.objects import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence


def problem(
    variant: Variant, phones: int, used: int, pods: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]]
) -> str:
    """Return what is wrong with bound pods and their claims; empty if all is right.

    A node has ``phones``, of which the first ``used`` belong to other pods.
    """
    free = phones - used
    nodes = Counter(pod["spec"]["nodeName"] for pod in pods)
    if full := [name for name, count in nodes.items() if variant is not Variant.NONE and count > free]:
        return f"{full[0]} has {nodes[full[0]]} pods, but {free} free phones"
    if not variant.dra:
        return ""
    if len(claims) != len(pods):
        return f"{len(pods)} pods have {len(claims)} claims"
    results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
    if len(results) != len(pods):
        return f"{len(pods)} pods have {len(results)} devices"
    devices = Counter((result["pool"], result["device"]) for result in results)
    taken = [name for _, name in devices if variant is not Variant.CAPACITY and _number(name) < used]
    if taken:
        return f"{taken[0]} belongs to another pod"
    allowed = free if variant is Variant.CAPACITY else 1
    excess = {device: count for device, count in devices.items() if count > allowed}
    return f"allocated more often than {allowed} times: {excess}" if excess else ""


def _number(device: str) -> int:
    return int(device.removeprefix("phone"))
