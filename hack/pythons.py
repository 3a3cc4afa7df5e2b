#!/usr/bin/env python3
"""Run ``make test`` with each Python that the package supports: ``make test-pythons``.

The versions are the classifiers in pyproject.toml. Each interpreter is searched in PATH and in pyenv's directory, and
has a virtual environment of its own, such as .venv-3.12. A version that is not installed is reported, and an error with
``--all``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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
    return next((path for path in candidates if path and _version(path) == version), None)


def _version(path: str) -> str:
    """Return the version that an interpreter reports; pyenv's shims of other versions report none."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([path, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Run the tests, print a line for each version, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make test-pythons", description="Run make test with each supported Python.")
    parser.add_argument("versions", nargs="*", help="default: all that the package supports")
    parser.add_argument("--all", action="store_true", help="fail if one is not installed")
    options = parser.parse_args()
    results = {}
    for version in options.versions or supported((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
        python = interpreter(version)
        if python is None:
            results[version] = "not installed"
            continue
        make = ["make", "test", f"PYTHON={python}", f"VENV=.venv-{version}"]
        results[version] = "failed" if subprocess.run(make, cwd=ROOT, check=False).returncode else "passed"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    missing = "not installed" in results.values() and (options.all or bool(options.versions))
    return int("failed" in results.values() or "passed" not in results.values() or missing)


if __name__ == "__main__":
    raise SystemExit(main())
