"""An item: a claim, and the function that checks it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from tests.e2e.kernel.containers import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.e2e.kernel.world import World


Environment = TypeVar("Environment")
"""The argument of an item: a ``World``, or a ``PodWorld`` with a real kubelet."""


class Item(NamedTuple, Generic[Environment]):
    """A claim and its check."""

    title: str
    check: Callable[[Environment], Awaitable[None] | None]
    """Raises AssertionError if the claim is wrong."""


def item(function: Callable[[Environment], Awaitable[None] | None]) -> Item[Environment]:
    """Return an item with the function's docstring as its title."""
    return Item(sentence(function), function)


def for_each_runtime(
    *functions: Callable[[World, str], Awaitable[None]], runtimes: Sequence[str] = RUNTIMES
) -> list[Item[World]]:
    """Return an item for each function and each container runtime."""
    return [
        Item(f"{runtime}: {sentence(function)}", partial(function, runtime=runtime))  # type: ignore[call-arg]
        for function in functions
        for runtime in runtimes
    ]


def sentence(function: Callable[..., object]) -> str:
    """Return a function's docstring as a line."""
    return " ".join((inspect.getdoc(function) or "").split()).removesuffix(".")
