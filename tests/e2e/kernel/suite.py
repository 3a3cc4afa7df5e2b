"""The items of each boot, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import (
    items_aosp,
    items_binderfs_phones,
    items_claims,
    items_containers,
    items_device_tool,
    items_foreign_binderfs,
    items_host_devices,
    items_phone_crashes,
    items_phone_escapes,
    items_phone_hosts,
    items_phone_pods,
    items_phones,
    items_pods,
    items_provisioned_phones,
    items_serve,
    items_simulation,
    items_stock,
    items_systemd,
    items_systemd_pods,
)
from tests.e2e.kernel.item import for_each_runtime, item

if TYPE_CHECKING:
    from tests.e2e.kernel.item import Item
    from tests.e2e.kernel.world import World

_BINDERFS_PHONES: Final[list[Item[World]]] = [
    item(items_binderfs_phones.unprepared),
    *for_each_runtime(items_binderfs_phones.whole, items_binderfs_phones.user_namespace, runtimes=["runc"]),
    *(item(items_binderfs_phones.leftover), item(items_binderfs_phones.no_flap)),
    *for_each_runtime(
        items_phone_escapes.phone_fixed,
        items_phone_escapes.phone_others,
        items_phone_escapes.phone_namespaced,
        items_phone_escapes.phone_administered,
        runtimes=["runc"],
    ),
    item(items_binderfs_phones.ended),
]
"""The core set of items for phones with a binderfs each."""

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
    *_BINDERFS_PHONES,
    *items_aosp.QUICK,
    item(items_simulation.same_steps),
]

SUITES: Final[dict[str, list[Item[World]]]] = {
    "core": _CORE,
    "binderfs": [*items_device_tool.ITEMS, *items_serve.ITEMS, *items_containers.ITEMS],
    "phones": items_phones.ITEMS,
    "binderfs-phones": [
        *items_binderfs_phones.ITEMS,
        *items_provisioned_phones.ITEMS,
        *items_phone_escapes.ITEMS,
        *items_phone_hosts.ITEMS,
        *items_phone_crashes.ITEMS,
    ],
    "claims": items_claims.ITEMS,
    "host-devices": items_host_devices.ITEMS,
    "foreign-binderfs": items_foreign_binderfs.ITEMS,
    "android": items_aosp.ITEMS,
    "android-apparmor": items_aosp.WITHOUT_SELINUX,
    "other-names": _BINDERFS_PHONES,
    "stock": items_stock.ITEMS,
    "systemd-core": items_systemd.CORE,
    "systemd": items_systemd.ITEMS,
}
"""The items with the stand-in kubelet, by boot."""

PODS: Final = [
    *items_pods.ITEMS,
    *(item for items in items_phone_pods.ITEMS.values() for item in items),
    items_phone_pods.RENAMED,
]
"""The items of the boot with a real kubelet."""

TITLES: Final = {boot: [each.title for each in items] for boot, items in SUITES.items()} | {
    "pods": [each.title for each in PODS],
    "systemd-pods": [each.title for each in items_systemd_pods.ITEMS],
}
"""The titles of each boot's items."""
