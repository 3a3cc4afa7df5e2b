"""hack/pythons.py: which versions of Python are tested."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from hack import pythons
from hack.pythons import ROOT, TARGETS, interpreter, supported

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SETTINGS = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_versions_are_those_of_the_package_in_order() -> None:
    versions = supported(SETTINGS)
    assert tomllib.loads(SETTINGS)["project"]["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    assert f"3.{sys.version_info.minor}" in versions


def test_an_interpreter_is_found_in_pyenv_s_directory_by_the_version_that_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"3.{sys.version_info.minor}"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert interpreter(version) is None
    for name, minor in ((version, version), ("3.99", "3.99")):
        program = tmp_path / "versions" / f"{name}.1" / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.symlink_to(sys.executable)
        assert (interpreter(minor) == str(program)) is (name == version)


def test_the_reported_version_is_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text(".venv-3.11/.installed lint types layers tests test-tools:\n")
    python = tmp_path / ".venv-3.11/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.11.99\n")
    python.chmod(0o755)
    assert pythons.run("3.11", sys.executable)
    assert "# version Python: 3.11.99" in capsys.readouterr().out.splitlines()


def test_an_environment_that_cannot_be_made_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text(".venv-3.11/.installed:\n\tfalse\n")
    assert not pythons.run("3.11", sys.executable)
    assert "Python 3.11: virtual environment : exit code 2" in capsys.readouterr().out


def test_the_targets_are_those_of_make_test() -> None:
    (targets,) = re.findall(r"^test: (.*?) ##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert (*targets.split(), "test-tools") == TARGETS


def test_a_version_that_is_not_installed_is_skipped() -> None:
    command = [sys.executable, "-m", "hack.pythons", "3.99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 - this repository's program
    assert "ok 1 - Python 3.99: make test # skip: not installed" in done.stdout
