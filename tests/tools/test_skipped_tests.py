"""Skipped tests of the suites with real parts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from tests.e2e.common.packages import MissingError

@pytest.fixture
def part():
    raise MissingError("requires Go")

def test_passes(): pass
def test_lacks_a_part(part): pass
def test_skips(): pytest.skip("no device")
"""


@pytest.mark.parametrize(("strict", "counts"), [("yes", "1 failed, 1 passed, 1 error"), ("", "1 passed, 2 skipped")])
def test_a_skipped_test_fails_a_strict_run_only(tmp_path: Path, strict: str, counts: str) -> None:
    file = tmp_path / "test_parts.py"
    file.write_text(TESTS)
    options = ("-rs", "-p", "no:randomly", "-p", "tests.e2e.conftest", "--rootdir=.")
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    run = subprocess.run(command, env=os.environ | {"E2E_STRICT": strict}, capture_output=True, text=True, check=False)  # noqa: S603 - pytest
    assert f" {counts} in " in run.stdout
    assert "requires Go" in run.stdout
