"""pytest in a sandbox: outside of it, which tests are selected; in it, what they are given."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Generator, Iterable
from typing import Any, Final, Protocol

import pytest

GIVEN: Final = pytest.StashKey[Any]()
"""What :func:`run` gives to the fixtures."""
FAILURES: Final = (AssertionError, OSError, subprocess.SubprocessError)
"""What commands raise."""
_OPTIONS: Final = (
    *("-p", "no:randomly", "-p", "no:cacheprovider", "-v", "--timeout=3600"),
    # TLS connections of aiohttp are closed later than its session.
    *("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    "-raP",  # with what tests that have passed say, such as versions and times
)


class Given(Protocol):
    """What the fixtures get."""

    def tails(self) -> Iterable[tuple[str, str]]:
        """Return name and end of the log of each process."""


class _Plugin:
    def __init__(self, given: Given | None = None) -> None:
        self._given = given
        self.items: list[pytest.Item] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        if self._given is not None:
            config.stash[GIVEN] = self._given

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Add the ends of the logs to the report of a test that fails."""
        report = yield
        if report.failed and self._given is not None:
            with contextlib.suppress(*FAILURES):
                report.sections += [(f"end of the log of {name}", tail) for name, tail in self._given.tails()]
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def select(*arguments: str) -> list[pytest.Item]:
    """Return the tests that arguments of pytest select. Ends the program with pytest's messages if they are wrong."""
    plugin = _Plugin()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main([*_OPTIONS, *arguments, "--collect-only"], plugins=[plugin])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        sys.stdout.write(output.getvalue())
        sys.exit(code)
    # pytest cuts longer lines in the sandbox. Its import of readline has set a width for the processes that follow.
    os.environ["COLUMNS"] = os.environ.get("COLUMNS", "200")
    return plugin.items


def run(given: Given, *arguments: str) -> int:
    """Run tests, whose fixtures find ``given`` in the stash, and return pytest's exit code."""
    return int(pytest.main([*_OPTIONS, *arguments], plugins=[_Plugin(given)]))


def require(config: pytest.Config, command: str) -> None:
    """End pytest if it runs tests outside of their sandbox, which a command sets up."""
    if GIVEN not in config.stash and not config.option.collectonly:
        raise pytest.UsageError(f"these tests need a sandbox: run {command}")
