"""An item: a claim, and the function that checks it on the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster

    Check = Callable[[Cluster], None]


class Item(NamedTuple):
    """A claim and its check, which raises AssertionError if the claim is wrong."""

    title: str
    name: str
    check: Check


@dataclass
class Items:
    """The items of a module, in the order of their definition, which is the order of their run."""

    all: list[Item] = field(default_factory=list)

    def __call__(self, title: str) -> Callable[[Check], Check]:
        """Add the decorated function."""

        def add(check: Check) -> Check:
            self.all.append(Item(title, check.__name__, check))
            return check

        return add
