#!/usr/bin/env python3
"""Set the version of the project: ``make version VERSION=1.2.3``.

The source of the version is ``__version__`` in aosp_plugin/__init__.py, from which pyproject.toml takes it. The other
distributions, the chart, manifests and documents repeat it; this module knows where, writes a new version to all of
these places, and a test compares them. For a release, it also gives the entries below "Unreleased" in CHANGELOG.md the
version and a date.

A version is ``1.2.3`` or ``1.2.3-rc.1``: Semantic Versioning, which Helm requires. Python packages have the form of
PEP 440, ``1.2.3rc1``.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("aosp_plugin/__init__.py")
CHANGELOG = Path("CHANGELOG.md")
UNRELEASED = "## Unreleased"

_VERSION = re.compile(r"\d+\.\d+\.\d+(-rc\.\d+)?")
_SEMVER = r"\d+\.\d+\.\d+(?:-rc\.\d+)?"
_PEP440 = r"\d+\.\d+\.\d+(?:rc\d+)?"

# Each has the text before the version as its only group.
_PYTHON_NAME = re.compile(rf"\b((?:aosp_device_plugin|kubelet_standin|kubectl_phones)-){_PEP440}")
_PLACES = (
    # Images, archives and the chart.
    ("", re.compile(rf"\b(aosp-device-plugin[:-]){_SEMVER}")),
    # The program's own output.
    ("", re.compile(rf"\b(aosp-plugin(?:, version)? ){_SEMVER}")),
    *(
        (f"{package}/__init__.py", re.compile(rf'^(__version__ = "){_SEMVER}', re.MULTILINE))
        for package in ("aosp_plugin", "kubelet_standin", "kubectl_phones")
    ),
    ("Dockerfile", re.compile(rf"^(ARG VERSION=){_SEMVER}", re.MULTILINE)),
    ("deploy/chart/Chart.yaml", re.compile(rf"^((?:version|appVersion): ){_SEMVER}", re.MULTILINE)),
)
"""The file, or "" for all of them, and the expression."""


class VersionError(Exception):
    """The version is not one that a release can have."""


def current(root: Path = ROOT) -> str:
    """Return the version of the source."""
    found = re.search(r'^__version__ = "(.+)"$', (root / SOURCE).read_text(encoding="utf-8"), re.MULTILINE)
    if found is None or not _VERSION.fullmatch(found[1]):
        raise VersionError(f'{SOURCE} has no line __version__ = "1.2.3"')
    return found[1]


def python_version(version: str) -> str:
    """Return the version in the form that names of Python packages have."""
    return version.replace("-rc.", "rc")


def with_version(name: str, text: str, version: str) -> str:
    """Return the text of the file of this name, with each version of the project in it replaced by another."""
    text = _PYTHON_NAME.sub(rf"\g<1>{python_version(version)}", text)
    for file, pattern in _PLACES:
        if file in {"", name}:
            text = pattern.sub(rf"\g<1>{version}", text)
    return text


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield name and content of each text file under version control that can name the current version.

    CHANGELOG.md is history, and the fast tests have versions of their own.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if name != str(CHANGELOG) and not name.startswith(("tests/unit/", "tests/tools/")) and path.is_file():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def changelog_of_release(text: str, version: str, date: str) -> str:
    """Return the changelog with the unreleased entries below a heading of their own.

    It stays as it is for a release candidate, and if the version has a heading already.
    """
    if "-rc." in version or re.search(rf"^## {re.escape(version)} ", text, re.MULTILINE):
        return text
    return text.replace(f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} - {date}\n", 1)


def set_version(version: str, date: str, root: Path = ROOT) -> list[str]:
    """Write the version to every place, and return the names of the files that changed."""
    if not _VERSION.fullmatch(version):
        raise VersionError(f"version {version!r}: expected 1.2.3 or 1.2.3-rc.1")
    changed = []
    for name, text in texts(root):
        replaced = with_version(name, text, version)
        if replaced != text:
            (root / name).write_text(replaced, encoding="utf-8")
            changed.append(name)
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    released = changelog_of_release(changelog, version, date)
    if released != changelog:
        (root / CHANGELOG).write_text(released, encoding="utf-8")
        changed.append(str(CHANGELOG))
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Set the version, or print it if none is given. Return the exit code."""
    parser = argparse.ArgumentParser(prog="make version", description="Set the version of the project.")
    parser.add_argument("version", nargs="?", help="1.2.3 or 1.2.3-rc.1")
    options = parser.parse_args(arguments)
    if not options.version:
        print(current())
        return 0
    try:
        changed = set_version(options.version, datetime.datetime.now(datetime.UTC).date().isoformat())
    except VersionError as error:
        print(f"make version: {error}")
        return 2
    print("\n".join(changed) or f"{options.version} everywhere already")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
