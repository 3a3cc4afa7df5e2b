"""The definition of a fault, and all faults by name."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.invariants import SETTLE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.e2e.cluster.chaos.world import World

    Inject = Callable[[World, random.Random], Iterator[str]]


@dataclass(frozen=True)
class Fault:
    """A fault."""

    name: str
    place: str
    """At most one fault of a place happens in a step: the control plane's programs, and each machine, are places."""
    inject: Callable[[World, random.Random], AbstractContextManager[str]]
    """A context manager: the fault happens at entry, and yields what it affects; its exit ends it."""
    weight: int
    bound: float
    """The seconds after the end within which the invariants must hold again."""


FAULTS: Final[dict[str, Fault]] = {}


def fault(place: str, *, weight: int = 2, bound: float = SETTLE) -> Callable[[Inject], Inject]:
    """Register a generator function as a fault."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__.replace("_", " ")
        FAULTS[name] = Fault(name, place, contextlib.contextmanager(inject), weight, bound)
        return inject

    return register
