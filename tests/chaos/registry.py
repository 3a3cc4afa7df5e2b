"""The definition of a fault, and all faults by name, which the modules of ``faults`` register."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.chaos.world import World

    AtOnce = Callable[[World, random.Random], Awaitable[None] | None]
    ForAWhile = Callable[[World, random.Random], AsyncIterator[None]]
    Inject = Callable[[World, random.Random], AbstractAsyncContextManager[None]]

A = TypeVar("A", bound="AtOnce")

Place = Literal["kubelet", "devices", "directories", "process", "limits"]
"""The place of a fault. At most one fault that lasts is active in each place."""

BOUND = 30.0
"""The seconds after the end of a fault within which everything must be right again."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault."""

    name: str
    sentence: str
    place: Place
    inject: Inject
    """A context manager: the fault happens at entry; a fault that lasts ends at exit."""
    lasts: bool
    alone: bool = False
    """Whether only changes of devices may happen during the fault, because the plugin cannot start then."""
    livable: bool = False
    """Whether the invariants must hold during the fault too."""
    excuses: tuple[str, ...] = ()
    """The names of invariants that need not hold during the fault."""
    weight: int = 4
    """The relative frequency."""
    namespaces: bool = False
    """Whether the fault requires namespaces."""


FAULTS: dict[str, Fault] = {}


class ViolationError(Exception):
    """An invariant does not hold; the message says which."""


def at_once(place: Place, **fields: Any) -> Callable[[A], A]:
    """Register a function, async or not, as a fault that happens at once; ``fields`` are those of a fault."""

    def register(function: A) -> A:
        @contextlib.asynccontextmanager
        async def inject(world: World, rng: random.Random) -> AsyncIterator[None]:
            result = function(world, rng)
            if inspect.isawaitable(result):
                await result
            yield

        _register(function, place=place, inject=inject, lasts=False, **fields)
        return function

    return register


def for_a_while(place: Place, **fields: Any) -> Callable[[ForAWhile], ForAWhile]:
    """Register an async generator as a fault that lasts: it starts before the ``yield`` and ends after it."""

    def register(function: ForAWhile) -> ForAWhile:
        _register(function, place=place, inject=contextlib.asynccontextmanager(function), lasts=True, **fields)
        return function

    return register


def _register(function: AtOnce | ForAWhile, **fields: Any) -> None:
    name = function.__name__.replace("_", "-")
    FAULTS[name] = Fault(name=name, sentence=inspect.getdoc(function) or "", **fields)
