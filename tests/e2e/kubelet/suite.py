"""The chapters and their items, in the order in which they run.

A chapter is a plugin with one configuration. Scenarios use a plugin of the tests, and are listed in ``scenarios``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet import (
    items_cdi,
    items_daemonset,
    items_devices,
    items_image,
    items_phones,
    items_pods,
    items_renamed,
    items_restarts,
    items_users,
    items_variants,
    versions,
)
from tests.e2e.kubelet.node import ALL
from tests.e2e.kubelet.plugins import PROGRAM, WITH_TMPFS, configuration
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.versions import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.items import Item
    from tests.e2e.kubelet.runtimes import Combination
    from tests.e2e.kubelet.versions import Condition


class Containerd(enum.Enum):
    """The containerd that runs the pods."""

    DEBIAN = enum.auto()
    """Debian's containerd, without support for CDI."""
    WITH_CDI = enum.auto()
    """A newer containerd, built by this project."""


@dataclass(frozen=True)
class Chapter:
    """Items that share a plugin and its configuration."""

    name: str
    title: str
    items: Sequence[Item]
    configuration: str
    resource: str = items_phones.PHONE
    """The resource that pods request by default."""
    devices: AbstractSet[str] = frozenset(items_phones.PHONES)
    """The resource's devices that are healthy while all binder devices exist."""
    each: int = 1
    """The number of devices that each of the two shared pods requests."""
    as_pod: bool = False
    """Whether the plugin runs as the DaemonSet's pod, instead of a process."""
    program: Sequence[str] = PROGRAM
    """The words that run the plugin as a process."""
    containerd: Containerd = Containerd.DEBIAN
    requires: Condition = ANY
    """The kubelets that it is about."""


CORE: Final[dict[str, AbstractSet[str]]] = {
    "process": {
        *("registers", "own_devices", "environment", "get", "status", "second_pod", "container_restart"),
        *("kubelet_restarts", "plugin_killed", "device_vanishes", "health", "ends"),
    },
    "pod": {
        *("registers", "ready", "exposure", "no_privileges", "file_systems", "no_devices", "own_devices", "ends"),
        *("content", "programs"),
    },
    "phones": {"registers", "three_paths", "second_phone", "incomplete", "ends"},
    "renamed-phones": {"registers", "restarted_kubelet", "ends"},
    "scenarios": {
        *("order", "refusals", "flips", "allocate", "pre_start", "kubelet_restarts", "stream_ends"),
        *("ended_plugin", "forgotten_options", "readmission"),
    },
}
"""The core set: the names of items by chapter."""

_FIRST, *_REST = items_pods.item.all
_POOL: Final = [*_REST, *items_restarts.item.all, *items_devices.item.all]
_AT_PATHS: Final = items_phones.item.named("three_paths", "second_phone")
_COMMON: Final = [
    *items_phones.item.named("incomplete"),
    *items_pods.item.named("get", "status", "container_restart"),
]
_END: Final = items_devices.item.named("ends")


def _pool(name: str, title: str, items: Sequence[Item], *, as_pod: bool = False) -> Chapter:
    return Chapter(name, title, items, configuration(), RESOURCE, ALL, each=3, as_pod=as_pod)


def _by_cdi(name: str, title: str, items: Sequence[Item], text: str, requires: Condition = ANY) -> Chapter:
    file, *rest = items_cdi.item.named("file", "spec", "recreated", "away", "ends")
    return Chapter(name, title, [_FIRST, file, *items, *rest], text, containerd=Containerd.WITH_CDI, requires=requires)


CHAPTERS: Final = (
    _pool("process", "the plugin as a process", [_FIRST, *_POOL]),
    _pool(
        "pod", "the plugin as a pod", [_FIRST, *items_daemonset.item.all, *items_image.item.all, *_POOL], as_pod=True
    ),
    Chapter(
        "phones",
        "a phone is a set of three binder devices",
        [_FIRST, *_AT_PATHS, *items_phones.item.named("two_phones"), *_COMMON, *_END],
        items_phones.CONFIGURATION,
    ),
    Chapter(
        "resources",
        "phones and a second resource",
        [*items_variants.resources.all, *_END],
        items_variants.RESOURCES,
    ),
    Chapter(
        "replicas",
        "phones with two replicas",
        [_FIRST, *items_variants.replicas.all, *_END],
        items_variants.REPLICAS,
        devices=items_variants.REPLICATED,
    ),
    Chapter(
        "renamed",
        "phones whose resource is renamed",
        [_FIRST, *items_renamed.item.all, *_END],
        items_phones.CONFIGURATION,
    ),
    Chapter(
        "renamed-phones",
        "phones that the plugin mounts, and whose resource is renamed",
        [_FIRST, *items_renamed.item.all, *_END],
        items_renamed.ON_TMPFS,
        devices=items_renamed.MOUNTED,
        program=WITH_TMPFS,
    ),
    Chapter("numa", "phones on two NUMA nodes", [_FIRST, *items_variants.numa.all, *_END], items_variants.NUMA),
    Chapter(
        "no-cdi",
        "phones by CDI, with a containerd that does not support it",
        [_FIRST, *items_cdi.unknown.all, *_END],
        items_cdi.BY_FIELD,
    ),
    _by_cdi(
        "cdi",
        "phones by CDI, in the field of the CRI",
        [*items_cdi.item.named("by_field"), *_AT_PATHS, *_COMMON],
        items_cdi.BY_FIELD,
        versions.CDI.required,
    ),
    Chapter(
        "kubelet-without-cdi",
        "phones by CDI, with a kubelet that does not support it",
        [_FIRST, *items_cdi.unknown.all, *_END],
        items_cdi.BY_FIELD,
        containerd=Containerd.WITH_CDI,
        requires=versions.WITHOUT_CDI,
    ),
    _by_cdi(
        "cdi-annotations",
        "phones by CDI, in an annotation",
        [*items_cdi.item.named("by_annotation"), *_AT_PATHS],
        items_cdi.BY_ANNOTATION,
    ),
)

_USERS_REFUSED: Final = Chapter(
    "users-refused",
    "pods with a user namespace, with a runtime that does not support it",
    [_FIRST, *items_users.refused.all, *_END],
    items_phones.CONFIGURATION,
)
_USERS: Final = (
    Chapter(
        "users",
        "pods with a user namespace",
        [_FIRST, *items_users.idmapped.all, *_END],
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
_MISSING_DEVICES: Final = _pool(
    "missing-devices",
    "devices that are missing, with a runtime that does not wait for them",
    [_FIRST, *items_devices.ignored.all, *_END],
)
_NOT_OF_CRI_O: Final = {"restart_without_device", "by_field", "by_annotation"}
"""Items that require a runtime that waits for devices, or that keeps the kubelet's request."""


def chapters(combination: Combination | None) -> tuple[Chapter, ...]:
    """Return all chapters, or those that apply to a combination of runtimes."""
    if combination is None:
        return CHAPTERS
    names = {"process", "pod", "phones", *(("cdi", "cdi-annotations") if combination.cdi else ("no-cdi",))}
    found = [chapter for chapter in CHAPTERS if chapter.name in names]
    if not combination.waits_for_devices:
        found.append(_MISSING_DEVICES)
    return (*found, *(_USERS if combination.user_namespaces else (_USERS_REFUSED,)))


def select(chapter: Chapter, text: str, *, core: bool, combination: Combination | None) -> list[Item]:
    """Return the items whose ``chapter.name`` contains ``text``: of the core set, or that apply to a combination."""
    names = CORE.get(chapter.name, set()) if core else {item.name for item in chapter.items}
    if combination is not None and not combination.waits_for_devices:
        names -= _NOT_OF_CRI_O
    return [item for item in chapter.items if item.name in names and text in f"{chapter.name}.{item.name}"]
