"""Fixtures for all tests, and the table of healing times at the end of a run."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The same examples at every run, however slow the machine is, and nothing written into the checkout.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

# A shell has what it runs in the background ignore Ctrl-C, and so would the processes that the tests press it for.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def kubelet_dir() -> Iterator[str]:
    """Return a directory whose path leaves room for a socket's name, which pytest's own may not."""
    directory = tempfile.mkdtemp(prefix="kubelet-", dir="/tmp")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Return an empty device directory."""
    return Nodes(tmp_path / "dev")


@pytest.fixture
def healed(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Time how long healing takes: from the call, where the damage is done, to the end of the test."""
    started = time.monotonic()

    def damaged() -> None:
        nonlocal started
        started = time.monotonic()

    yield damaged
    # With the report of the test, which comes here from the processes that share the tests as well.
    request.node.user_properties.append(("healed", (request.node.name, time.monotonic() - started)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long each healing case took; nothing is asserted of it."""
    ends = [one for one in chain(*terminalreporter.stats.values()) if getattr(one, "when", "") == "teardown"]
    times = dict(value for end in ends for name, value in end.user_properties if name == "healed")
    if times:
        terminalreporter.section("healing: from the damage to all devices listed")
        for name, seconds in sorted(times.items()):
            terminalreporter.write_line(f"{seconds * 1000:8.0f} ms  {name}")
