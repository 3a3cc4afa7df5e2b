"""Which chapters there are, and which items they have, in the order in which they run.

A chapter is a plugin with one configuration. Scenarios have no plugin of ours, and are listed in ``scenarios``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet import (
    items_cdi,
    items_daemonset,
    items_nodes,
    items_phones,
    items_pods,
    items_restarts,
    items_variants,
)
from tests.e2e.kubelet.node import ALL
from tests.e2e.kubelet.plugins import configuration
from tests.e2e.kubelet.pods import RESOURCE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.items import Item


class Containerd(enum.Enum):
    """Which one runs the pods."""

    DEBIAN = enum.auto()
    """Debian's own."""
    WITH_CDI = enum.auto()
    """A newer one, built here."""


@dataclass(frozen=True)
class Chapter:
    """Items that share a plugin."""

    name: str
    title: str
    items: Sequence[Item]
    configuration: str
    resource: str = items_phones.PHONE
    """The one that pods ask for if they name none."""
    devices: AbstractSet[str] = frozenset(items_phones.PHONES)
    """Those of the resource that are healthy while all nodes are there."""
    each: int = 1
    """How many devices a pod has that is there for several items."""
    as_pod: bool = False
    """Whether the plugin runs as the DaemonSet's pod, and not as a process."""
    containerd: Containerd = Containerd.DEBIAN

    def wanted(self, text: str) -> list[Item]:
        """Return the items whose name, after the chapter's, has ``text`` in it."""
        return [item for item in self.items if text in f"{self.name}.{item.name}"]


_FIRST, *_REST = items_pods.item.all
_NODES: Final = [*_REST, *items_restarts.item.all, *items_nodes.item.all]
_START: Final = items_pods.item.named("registers", "capacity")
_AT_PATHS: Final = items_phones.item.named("three_paths", "environment", "second_phone")
_KEPT: Final = [
    *items_phones.item.named("incomplete", "too_many"),
    *items_pods.item.named("books", "container_restart", "asked_once"),
]
_END: Final = items_nodes.item.named("ends")


def _of_nodes(name: str, title: str, items: Sequence[Item], *, as_pod: bool) -> Chapter:
    return Chapter(name, title, items, configuration(), RESOURCE, ALL, each=3, as_pod=as_pod)


def _by_cdi(name: str, title: str, items: Sequence[Item], text: str) -> Chapter:
    file, *rest = items_cdi.item.named("file", "spec", "made_anew", "two_phones", "away", "ends")
    return Chapter(name, title, [*_START, file, *items, *rest], text, containerd=Containerd.WITH_CDI)


CHAPTERS: Final = (
    _of_nodes("process", "the plugin as a process", [_FIRST, *_NODES], as_pod=False),
    _of_nodes("pod", "the plugin as a pod", [_FIRST, *items_daemonset.item.all, *_NODES], as_pod=True),
    Chapter(
        "phones",
        "three nodes are a phone",
        [*_START, *_AT_PATHS, *items_phones.item.named("two_phones", "away"), *_KEPT, *_END],
        items_phones.CONFIGURATION,
    ),
    Chapter(
        "recreate",
        "phones that are to be made anew, of nodes that can't be",
        [*items_variants.recreate.all, *_END],
        items_variants.RECREATE,
        devices=frozenset(),
    ),
    Chapter(
        "resources",
        "phones, and a second resource",
        [*items_variants.resources.all, *_END],
        items_variants.RESOURCES,
    ),
    Chapter(
        "replicas",
        "phones for two containers each",
        [*_START, *items_variants.replicas.all, *_END],
        items_variants.REPLICAS,
        devices=items_variants.REPLICATED,
    ),
    Chapter("numa", "phones on two NUMA nodes", [*_START, *items_variants.numa.all, *_END], items_variants.NUMA),
    Chapter(
        "no-cdi",
        "phones by CDI, with a containerd that knows none",
        [*_START, *items_cdi.unknown.all, *_END],
        items_cdi.BY_FIELD,
    ),
    _by_cdi(
        "cdi",
        "phones by CDI, in the CRI's field",
        [*items_cdi.item.named("by_field"), *_AT_PATHS, *_KEPT],
        items_cdi.BY_FIELD,
    ),
    _by_cdi(
        "cdi-annotations",
        "phones by CDI, in an annotation",
        [*items_cdi.item.named("by_annotation"), *_AT_PATHS],
        items_cdi.BY_ANNOTATION,
    ),
)
