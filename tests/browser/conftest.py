"""The browser for all tests of the page, and a summary of measured times at the end of the run."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Chrome

TIMES = pytest.StashKey[dict[str, list[float]]]()


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    """Run a browser; without one, the tests are skipped."""
    programs = chromium.find()
    if programs is None:
        pytest.skip(chromium.MISSING)
    with chromium.started(programs) as browser:
        yield browser


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Return a function that records how many seconds something took."""
    times = request.config.stash.setdefault(TIMES, {})

    def record(label: str, seconds: float) -> None:
        times.setdefault(label, []).append(seconds)

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the measured times and the load of the machine."""
    times = config.stash.get(TIMES, {})
    if times:
        terminalreporter.section("the page with 10,000 devices (target: one second)")
        for label, seconds in sorted(times.items()):
            figures = f"median {statistics.median(seconds) * 1000:5.0f} ms, maximum {max(seconds) * 1000:5.0f} ms"
            terminalreporter.write_line(f"{figures} of {len(seconds):2}: {label}")
        terminalreporter.write_line(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
