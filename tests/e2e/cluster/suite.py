"""The groups of items, in the order in which they run, and which of them CI runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.items import Item


@dataclass(frozen=True)
class Group:
    """Items that share a cluster; they leave it without a plugin and without phones."""

    name: str
    title: str
    items: Sequence[Item]
    machines: int = 1
    """The number of machines that the items need."""
    newest: bool = False
    """Whether the items need the newest Kubernetes too."""

    def select(self, text: str) -> list[Item]:
        """Return the items whose ``group.name`` contains ``text``."""
        return [item for item in self.items if text in f"{self.name}.{item.name}"]


GROUPS: Final[Sequence[Group]] = ()

ALWAYS: Final = ("install", "phones")
"""The groups of the core set; one other that needs no more than two machines' programs joins them by rotation."""


def core(number: int) -> list[Group]:
    """Return the core set: the groups that always run, and the ``number``-th of the others, by rotation."""
    always = [group for group in GROUPS if group.name in ALWAYS]
    others = [group for group in GROUPS if group.name not in ALWAYS and not group.newest]
    return always + ([others[number % len(others)]] if others else [])
