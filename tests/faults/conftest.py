"""A test of this directory fails where the fast tests skip: without root, /dev/fuse, namespaces or strace."""

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed, with what it requires."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = str(report.longrepr)
    return report
