"""hack/pythons.py: which versions of Python are tested."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

from hack.pythons import ROOT, TARGETS, supported

SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_versions_are_those_of_the_package_in_order() -> None:
    versions = supported(SETTINGS)
    assert tomllib.loads(SETTINGS)["project"]["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    assert f"3.{sys.version_info.minor}" in versions


def test_the_targets_are_those_of_make_test() -> None:
    (targets,) = re.findall(r"^test: (.*?) ##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert (*targets.split(), "test-tools") == TARGETS


def test_a_version_that_is_not_installed_is_skipped() -> None:
    command = [sys.executable, "-m", "hack.pythons", "3.99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - this repository's program
    assert "ok 1 - Python 3.99: make test # skip: not installed" in done.stdout
