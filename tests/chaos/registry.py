"""What a fault is, and all that there are: by name, as the modules of ``faults`` enter them."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.chaos.world import World

    AtOnce = Callable[[World, random.Random], Awaitable[None] | None]
    ForAWhile = Callable[[World, random.Random], AsyncIterator[None]]
    Befall = Callable[[World, random.Random], AbstractAsyncContextManager[None]]

A = TypeVar("A", bound="AtOnce")

Place = Literal["kubelet", "nodes", "directories", "process", "limits", "clock"]
"""Where a fault is. Of those that last, only one at a time is in each place."""

Need = Literal["namespace"]
"""What not every machine has: namespaces of one's own."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    name: str
    sentence: str
    place: Place
    befall: Befall
    """A context: it happens at the beginning, and is over at the end where it lasts."""
    lasts: bool
    alone: bool
    """Whether only nodes come and go while it lasts: the plugin could not start then, and rightly."""
    livable: bool
    """Whether everything has to hold while it lasts, too."""
    weight: int
    """How often it happens beside others."""
    needs: frozenset[Need]


FAULTS: dict[str, Fault] = {}


class ViolationError(Exception):
    """Something that has to hold does not; the text says what."""


def at_once(place: Place, *, weight: int = 4, needs: tuple[Need, ...] = ()) -> Callable[[A], A]:
    """Enter a function, async or not, as a fault that happens at once."""

    def enter(function: A) -> A:
        @contextlib.asynccontextmanager
        async def befall(world: World, rng: random.Random) -> AsyncIterator[None]:
            done = function(world, rng)
            if inspect.isawaitable(done):
                await done
            yield

        _enter(function, place, befall, lasts=False, alone=False, livable=False, weight=weight, needs=needs)
        return function

    return enter


def for_a_while(
    place: Place, *, weight: int = 4, needs: tuple[Need, ...] = (), alone: bool = False, livable: bool = False
) -> Callable[[ForAWhile], ForAWhile]:
    """Enter an async generator as a fault that lasts: it begins before its ``yield`` and is over after it."""

    def enter(function: ForAWhile) -> ForAWhile:
        befall = contextlib.asynccontextmanager(function)
        _enter(function, place, befall, lasts=True, alone=alone, livable=livable, weight=weight, needs=needs)
        return function

    return enter


def _enter(
    function: AtOnce | ForAWhile,
    place: Place,
    befall: Befall,
    *,
    lasts: bool,
    alone: bool,
    livable: bool,
    weight: int,
    needs: tuple[Need, ...],
) -> None:
    name = function.__name__.replace("_", "-")
    sentence = inspect.getdoc(function) or ""
    if name in FAULTS or not sentence:
        raise ValueError(f"{name} has no docstring, or is there already")
    FAULTS[name] = Fault(name, sentence, place, befall, lasts, alone, livable, weight, frozenset(needs))
