"""A test of this directory fails where the fast tests skip: without root."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.hanging_fs import HangingFileSystem


@pytest.fixture
def hanging_file_system(tmp_path: Path) -> Iterator[HangingFileSystem]:
    """Mount a FUSE file system that hangs on request, at ``tmp_path/hanging``."""
    with HangingFileSystem(tmp_path / "hanging") as file_system:
        yield file_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed, with what it requires."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = str(report.longrepr)
    return report
