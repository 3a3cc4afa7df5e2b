"""The chapters and items of ``--runtime``: what depends on the container runtime and on the OCI runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet import items_devices, items_phones, items_pods, items_users
from tests.e2e.kubelet.node import ALL
from tests.e2e.kubelet.plugins import configuration
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.suite import CHAPTERS, Chapter

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.runtimes import Combination

_START: Final = items_pods.item.named("registers")
_END: Final = items_devices.item.named("ends")
_REFUSED: Final = Chapter(
    "users-refused",
    "pods with a user namespace, with a runtime that does not support it",
    [*_START, *items_users.refused.all, *_END],
    items_phones.CONFIGURATION,
)
_SUPPORTED: Final = (
    Chapter(
        "users",
        "pods with a user namespace",
        [*_START, *items_users.idmapped.all, *_END],
        items_phones.CONFIGURATION,
    ),
    Chapter(
        "users-mounts",
        "pods with a user namespace, devices on a file system without ID-mapped mounts",
        [*items_users.mounts.all, *_END],
        items_users.ON_RAMFS,
    ),
    Chapter(
        "users-cdi",
        "the same, by CDI",
        [*items_users.by_cdi.all, *_END],
        items_users.ON_RAMFS_BY_CDI,
    ),
)
_IGNORED: Final = Chapter(
    "missing-devices",
    "devices that are missing, with a runtime that does not wait for them",
    [*_START, *items_devices.ignored.all, *_END],
    configuration(),
    RESOURCE,
    ALL,
    each=3,
)

_STARTED: Final = {"registers", "ends"}
NAMES: Final[dict[str, AbstractSet[str]]] = {
    "process": {
        *_STARTED,
        *("own_devices", "environment", "mounts", "two_containers", "without", "init_containers", "container_restart"),
        "oci_runtime",
        *("finished", "kubelet_restarts", "runtime_restarts", "device_vanishes", "restart_without_device", "reboot"),
    },
    "pod": {
        *_STARTED,
        *("ready", "exposure", "command", "no_privileges", "file_systems", "no_devices", "own_devices"),
        *("plugin_killed", "runtime_restarts"),
    },
    "phones": {*_STARTED, "three_paths", "environment", "second_phone", "two_phones", "container_restart"},
    "no-cdi": {*_STARTED, "without_devices"},
    "cdi": {
        *_STARTED,
        *("file", "spec", "three_paths", "environment", "second_phone", "container_restart", "recreated", "away"),
    },
    "cdi-annotations": {*_STARTED, "file", "spec", "three_paths"},
    _REFUSED.name: {*_STARTED, "no_user_namespaces"},
    **{chapter.name: {item.name for item in chapter.items} for chapter in (*_SUPPORTED, _IGNORED)},
}
"""The names of items by chapter."""


def chapters(combination: Combination) -> list[Chapter]:
    """Return the chapters that apply to a combination."""
    excluded = {"no-cdi"} if combination.cdi else {"cdi", "cdi-annotations"}
    users = _SUPPORTED if combination.user_namespaces else (_REFUSED,)
    devices = () if combination.waits_for_devices else (_IGNORED,)
    return [chapter for chapter in (*CHAPTERS, *devices, *users) if chapter.name in NAMES.keys() - excluded]


def names(combination: Combination) -> dict[str, AbstractSet[str]]:
    """Return the names of the items that apply to a combination, by chapter."""
    if combination.waits_for_devices:
        return NAMES
    return NAMES | {"process": NAMES["process"] - {"restart_without_device"}}
