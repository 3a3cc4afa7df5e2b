"""Which items there are, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.kubelet import items_daemonset, items_nodes, items_pods, items_restarts

if TYPE_CHECKING:
    from tests.e2e.kubelet.items import Item


def items_for(way: str) -> list[Item]:
    """Return the items for the plugin as a process or as a pod."""
    first, *rest = items_pods.item.all
    more = items_daemonset.item.all if way == "pod" else []
    return [first, *more, *rest, *items_restarts.item.all, *items_nodes.item.all]
