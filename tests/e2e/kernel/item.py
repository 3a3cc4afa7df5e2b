"""What an item is: a sentence, and a function that proves it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.e2e.kernel.containers import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.e2e.kernel.world import World


class Item(NamedTuple):
    """Something to be proved."""

    title: str
    prove: Callable[[World], Awaitable[None]]
    """Raises AssertionError where it does not hold."""


def item(function: Callable[[World], Awaitable[None]]) -> Item:
    """Return the item whose sentence is the function's docstring."""
    return Item(_sentence(function), function)


def for_each_runtime(
    *functions: Callable[[World, str], Awaitable[None]], runtimes: Sequence[str] = RUNTIMES
) -> list[Item]:
    """Return an item for each function and each container runtime."""
    return [
        Item(f"{runtime}: {_sentence(function)}", partial(function, runtime=runtime))  # type: ignore[call-arg]
        for function in functions
        for runtime in runtimes
    ]


def _sentence(function: Callable[..., Awaitable[None]]) -> str:
    return " ".join((inspect.getdoc(function) or "").split()).removesuffix(".")
