#!/usr/bin/env python3
"""Run ``make test`` with each Python that the package supports: ``make test-pythons``.

The versions are the classifiers in pyproject.toml. Each interpreter is searched in PATH, in pyenv's directory and among
those from ``--get``, and has a virtual environment of its own, such as .venv-3.12. Each target that ``make
test`` consists of has a line with its result, such as ``ok 1 - Python 3.12: lint``. A version that is not installed is
skipped.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

from hack import debian_python
from tests.e2e.common import packages

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("lint", "types", "layers", "tests", "test-tools")
"""The targets of ``make test``, and ``make test-tools``; tests/tools/test_pythons.py compares them."""

_numbers = itertools.count(1)


def supported(settings: str) -> list[str]:
    """Return the versions of the classifiers in pyproject.toml, oldest first."""
    classifiers = tomllib.loads(settings)["project"]["classifiers"]
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name) for name in classifiers]
    return sorted((match[1] for match in found if match), key=lambda version: int(version.split(".")[1]))


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of a version, such as "3.12"."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), reverse=True),
    ]
    built = debian_python.found(version)
    return next((path for path in (*candidates, built) if path and _version(path) == version), None)


def _version(path: str, digits: int = 2) -> str:
    """Return the version that an interpreter reports; pyenv's shims of other versions report none."""
    program = f"import sys; print('.'.join(map(str, sys.version_info[:{digits}])))"
    return subprocess.run([path, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


def run(version: str, python: str) -> bool:
    """Run the tests with an interpreter, print a line for each target, and return whether all passed."""
    environment = f".venv-{version}"
    settings = (f"PYTHON={python}", f"VENV={environment}")
    if problems := _make(f"{environment}/.installed", *settings):
        print(f"not ok {next(_numbers)} - Python {version}: virtual environment : {problems}", flush=True)
        return False
    # An environment from an earlier run can have an earlier patch version than the interpreter.
    print(f"# version Python: {_version(str(ROOT / environment / 'bin/python'), digits=3)}", flush=True)
    passed = True
    for target in TARGETS:
        started = time.monotonic()
        problems = _make(target, *settings)
        passed = passed and problems is None
        if problems is None:
            print(f"ok {next(_numbers)} - Python {version}: {target} ({time.monotonic() - started:.0f} s)", flush=True)
        else:
            print(f"not ok {next(_numbers)} - Python {version}: {target} : {problems}", flush=True)
    return passed


def _make(*arguments: str) -> str | None:
    """Run make and print its output; return the lines that name a failed test or an error if it fails."""
    problems = []
    with subprocess.Popen(
        ["make", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if re.match(r"FAILED |ERROR |.*\berror:|.*BROKEN", line):
                problems.append(line.strip())
    code = process.returncode
    return "; ".join(problems) or f"exit code {code}" if code else None


def main() -> int:
    """Run the tests with each version, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make test-pythons", description="Run make test with each supported Python.")
    parser.add_argument("versions", nargs="*", help="default: all that the package supports")
    parser.add_argument("--get", action="store_true", help="get one that is not installed from Debian; requires root")
    options = parser.parse_args()
    versions = options.versions or supported((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    failed, missing = [], []
    for version in versions:
        python, reason = interpreter(version), "not installed"
        if python is None and options.get:
            try:
                python = debian_python.get(version)
            except packages.MissingError as error:
                reason = str(error)
        if python is None:
            missing.append(version)
            print(f"ok {next(_numbers)} - Python {version}: make test # skip: {reason}", flush=True)
        elif not run(version, python):
            failed.append(version)
    print(f"failed: {', '.join(failed) or 'none'}; not installed: {', '.join(missing) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
