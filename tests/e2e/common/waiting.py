"""Wait for conditions that other processes fulfil."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = float(os.environ.get("E2E_PATIENCE", "30"))
"""The default limit in seconds: that of the kubelet's own end-to-end tests; longer on an emulated machine."""

Value = TypeVar("Value")


def until(condition: Callable[[], Value], what: str, *, seconds: float = PATIENCE) -> Value:
    """Poll until the condition's result is true, and return it. Raises AssertionError with the last result."""
    end = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            result = condition()
            if result:
                return result
            last = result
        except (AssertionError, OSError, LookupError, ValueError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s; last: {last!r}")
        time.sleep(0.1)


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait in an event loop until a condition is true. Raises AssertionError."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s"
        await asyncio.sleep(0.05)


def holds(condition: Callable[[], object], what: str, *, seconds: float) -> None:
    """Check that a condition holds for a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"{what}: no longer"
        time.sleep(0.2)
