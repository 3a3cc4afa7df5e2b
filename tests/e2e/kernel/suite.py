"""Which items there are in which boot, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import items_containers, items_nodes, items_serve, items_stock

if TYPE_CHECKING:
    from tests.e2e.kernel.item import Item

SUITES: Final[dict[str, list[Item]]] = {
    "binderfs": [*items_nodes.ITEMS, *items_serve.ITEMS, *items_containers.ITEMS],
    "stock": items_stock.ITEMS,
}
