"""What an item is: a sentence, and a function that proves it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tests.e2e.kernel.containers import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.e2e.kernel.world import World


Place = TypeVar("Place")
"""What an item is proved in: a ``World``, or a node with a real kubelet."""


class Item(NamedTuple, Generic[Place]):
    """Something to be proved."""

    title: str
    prove: Callable[[Place], Awaitable[None] | None]
    """Raises AssertionError where it does not hold."""


def item(function: Callable[[Place], Awaitable[None] | None]) -> Item[Place]:
    """Return the item whose sentence is the function's docstring."""
    return Item(_sentence(function), function)


def for_each_runtime(
    *functions: Callable[[World, str], Awaitable[None]], runtimes: Sequence[str] = RUNTIMES
) -> list[Item[World]]:
    """Return an item for each function and each container runtime."""
    return [
        Item(f"{runtime}: {_sentence(function)}", partial(function, runtime=runtime))  # type: ignore[call-arg]
        for function in functions
        for runtime in runtimes
    ]


def _sentence(function: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(function) or "").split()).removesuffix(".")
