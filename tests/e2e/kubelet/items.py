"""What an item is: a claim, and the function that tries it on the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.kubelet.node import Node


class Item(NamedTuple):
    """A claim, and what raises where it does not hold."""

    title: str
    name: str
    check: Callable[[Node], None]


@dataclass
class Items:
    """The items of a module, in the order in which they stand there."""

    all: list[Item] = field(default_factory=list)

    def named(self, *names: str) -> list[Item]:
        """Return the items of these names, in the order of the names."""
        every = {item.name: item for item in self.all}
        return [every[name] for name in names]

    def __call__(self, title: str) -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
        """Add the decorated function."""

        def add(check: Callable[[Node], None]) -> Callable[[Node], None]:
            self.all.append(Item(title, check.__name__, check))
            return check

        return add
