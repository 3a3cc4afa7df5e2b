"""The items of each boot, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import (
    items_client_pods,
    items_clients,
    items_containers,
    items_nodes,
    items_phones,
    items_pods,
    items_provision,
    items_serve,
    items_stock,
)
from tests.e2e.kernel.item import for_each_runtime, item

if TYPE_CHECKING:
    from tests.e2e.kernel.item import Item
    from tests.e2e.kernel.world import World

_CORE: Final[list[Item[World]]] = [
    item(items_containers.ready),
    *for_each_runtime(
        items_containers.own_devices,
        items_containers.others_devices,
        items_containers.forged,
        items_containers.control,
        items_containers.user_namespace,
        items_containers.device_alone,
        items_containers.mount_alone,
        runtimes=["runc"],
    ),
    item(items_containers.ended),
    item(items_phones.ready),
    *for_each_runtime(items_phones.phone, items_phones.next_user, runtimes=["runc"]),
    item(items_phones.no_flap),
    item(items_phones.leaked),
    item(items_phones.provisioned),
    *for_each_runtime(
        items_phones.provisioned_in_containers, items_phones.provisioned_in_user_namespace, runtimes=["runc"]
    ),
]

SUITES: Final[dict[str, list[Item[World]]]] = {
    "core": _CORE,
    "binderfs": [*items_nodes.ITEMS, *items_serve.ITEMS, *items_containers.ITEMS],
    "phones": items_phones.ITEMS,
    "stock": items_stock.ITEMS,
}
"""The boots with the stand-in kubelet."""

TITLES: Final = {name: [item.title for item in items] for name, items in SUITES.items()} | {
    "pods": [item.title for item in (*items_pods.ITEMS, *items_provision.ITEMS)],
    "clients": [
        *(item.title for item in items_clients.ITEMS),
        *(item.title for item in items_client_pods.ITEMS),
    ],
}
"""The titles of each boot's items."""
