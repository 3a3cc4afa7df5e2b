"""A context variable with the current resource, which ``service.logs`` adds to log records; durations in logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

RESOURCE: ContextVar[str] = ContextVar("resource", default="")
"""Name of the resource that the current task or thread works for; empty if it works for none, or for all."""


@contextlib.contextmanager
def working_for(resource_name: str) -> Iterator[None]:
    """Set ``RESOURCE`` inside the context, also for the tasks and threads that start in it."""
    token = RESOURCE.set(resource_name)
    try:
        yield
    finally:
        RESOURCE.reset(token)


def milliseconds(seconds: float) -> float:
    """Return a duration in the unit and precision of the log."""
    return round(seconds * 1000, 2)
