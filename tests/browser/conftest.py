"""A browser for all tests of the page, and how long things took at the end of the run."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Chrome

TOOK = pytest.StashKey[dict[str, list[float]]]()


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    """Run a browser; without one the tests are skipped, and counted as that."""
    programs = chromium.find()
    if programs is None:
        pytest.skip(chromium.ABSENT)
    with chromium.started(programs) as started:
        yield started


@pytest.fixture
def took(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Return a function that notes how many seconds something took, as often as it happens."""
    times = request.config.stash.setdefault(TOOK, {})

    def note(what: str, seconds: float) -> None:
        times.setdefault(what, []).append(seconds)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was noted, and how much else the machine had to do."""
    times = config.stash.get(TOOK, {})
    if times:
        terminalreporter.section("the page with 10,000 devices: a second is wanted")
        for what, seconds in sorted(times.items()):
            figures = f"median {statistics.median(seconds) * 1000:5.0f} ms, worst {max(seconds) * 1000:5.0f} ms"
            terminalreporter.write_line(f"{figures} of {len(seconds):2}: {what}")
        terminalreporter.write_line(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
