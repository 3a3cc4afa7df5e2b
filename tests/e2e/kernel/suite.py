"""Which items there are in which boot, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import (
    items_containers,
    items_nodes,
    items_phones,
    items_pods,
    items_provision,
    items_serve,
    items_stock,
)

if TYPE_CHECKING:
    from tests.e2e.kernel.item import Item
    from tests.e2e.kernel.world import World

SUITES: Final[dict[str, list[Item[World]]]] = {
    "binderfs": [*items_nodes.ITEMS, *items_serve.ITEMS, *items_containers.ITEMS],
    "phones": items_phones.ITEMS,
    "stock": items_stock.ITEMS,
}
"""With the stand-in kubelet."""

TITLES: Final = {name: [item.title for item in items] for name, items in SUITES.items()} | {
    "pods": [item.title for item in (*items_pods.ITEMS, *items_provision.ITEMS)]
}
