"""Waiting for what another process does: asked again until it holds, with the reason when it never did."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = float(os.environ.get("E2E_PATIENCE", "30"))
"""Seconds: what the kubelet's own end-to-end tests give a plugin to be there again; more on an emulated machine."""

Value = TypeVar("Value")


def until(condition: Callable[[], Value], what: str, *, seconds: float = PATIENCE) -> Value:
    """Ask until the answer is true, and return it. AssertionError with ``what`` and the last answer."""
    end = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            answer = condition()
            if answer:
                return answer
            last = answer
        except (AssertionError, OSError, LookupError, ValueError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s; last: {last!r}")
        time.sleep(0.1)


def holds(condition: Callable[[], object], what: str, *, seconds: float) -> None:
    """Check that something stays as it is for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"{what}: no longer"
        time.sleep(0.2)
