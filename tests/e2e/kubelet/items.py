"""An item: a claim, and the function that checks it on the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.kubelet.versions import ANY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.kubelet.node import Node
    from tests.e2e.kubelet.versions import Condition


class Item(NamedTuple):
    """A claim and its check, which raises AssertionError if the claim is wrong."""

    title: str
    name: str
    check: Callable[[Node], None]
    requires: Condition
    """The kubelets that it is about."""


@dataclass
class Items:
    """The items of a module, in the order of their definition."""

    all: list[Item] = field(default_factory=list)

    def named(self, *names: str) -> list[Item]:
        """Return the items with these names, in the order of the names."""
        items = {item.name: item for item in self.all}
        return [items[name] for name in names]

    def __call__(
        self, title: str, requires: Condition = ANY
    ) -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
        """Add the decorated function; ``requires``: the kubelets that it is about."""

        def add(check: Callable[[Node], None]) -> Callable[[Node], None]:
            self.all.append(Item(title, check.__name__, check, requires))
            return check

        return add
