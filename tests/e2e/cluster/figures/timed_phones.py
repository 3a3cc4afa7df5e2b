"""``tmpfs_phones`` with a clock in each part of Prepare and Unprepare; ``FIGURES_PARTS`` names the file of the results.

The clock costs some microseconds per part.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.__main__ import main
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.dra import driver
from aosp_plugin.framework.dra.claim_host import ClaimHost, ClaimSpecs
from aosp_plugin.framework.dra.claims import Claims
from tests.e2e.cluster.figures.tmpfs_phones import mount_tmpfs

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("Prepare, without gRPC", Claims, "prepare"),
    ("  GET of the claim", driver, "get_claim"),
    ("  in the worker thread", ClaimHost, "prepare"),
    ("    phone: mount, devices", ClaimsBackend, "prepare"),
    ("    CDI spec", ClaimSpecs, "write"),
    ("Unprepare, without gRPC", Claims, "unprepare"),
    ("  in the worker thread", ClaimHost, "unprepare"),
    ("    phone: unmount", ClaimsBackend, "unprepare"),
    ("each file that is replaced", atomic_file, "replace"),
)


def _measure(owner: Any, name: str) -> list[float]:
    """Measure each call of a function of a class or module from now on; return the list that gets the seconds."""
    seconds: list[float] = []
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - started)

    @functools.wraps(function)
    async def call_async(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return await function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - started)

    setattr(owner, name, call_async if inspect.iscoroutinefunction(function) else call)
    return seconds


def _save(path: Path, measured: dict[str, list[float]]) -> None:
    lines = {part: _percentiles(seconds) for part, seconds in measured.items() if seconds}
    path.write_text(json.dumps(lines))


def _percentiles(seconds: list[float]) -> tuple[int, float, float]:
    ordered = sorted(seconds)
    return len(ordered), 1000 * statistics.median(ordered), 1000 * ordered[max(0, -(-99 * len(ordered) // 100) - 1)]


if __name__ == "__main__":
    mount_tmpfs()
    atexit.register(
        _save, Path(os.environ["FIGURES_PARTS"]), {part: _measure(owner, name) for part, owner, name in _PARTS}
    )
    main()
