"""The checkout that a release is built from: version, commit, time, and the files under version control."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from hack import version
from hack.release.errors import ReleaseError, run

ROOT = Path(__file__).resolve().parents[2]


class Project(NamedTuple):
    """A checkout."""

    root: Path
    version: str
    revision: str
    """The commit, with "-dirty" if files differ from it."""
    epoch: int
    """The time of the commit, in seconds since 1970, which all files of the release have."""
    changed: tuple[str, ...]
    """Files that differ from the commit."""


def read(root: Path) -> Project:
    """Read the state of a checkout. Raises ReleaseError if it is not under version control."""
    commit, epoch = run("git", "log", "-1", "--format=%H %ct", cwd=root).split()
    changed = tuple(line[3:] for line in run("git", "status", "--porcelain", cwd=root).splitlines())
    try:
        current = version.current(root)
    except version.VersionError as error:
        raise ReleaseError(str(error)) from error
    return Project(root, current, commit + ("-dirty" if changed else ""), int(epoch), changed)


def check(project: Project, *, tag: str, allow_changes: bool) -> None:
    """Raise ReleaseError unless the checkout is what the release claims to be made of."""
    if project.changed and not allow_changes:
        names = ", ".join(project.changed[:5])
        raise ReleaseError(f"files are not committed: {names}; commit them, or build with CHANGES=yes")
    if not tag:
        return
    if project.changed:
        raise ReleaseError("a tagged release cannot be built from files that are not committed")
    if tag != f"v{project.version}":
        raise ReleaseError(f"the tag is {tag}, the version {project.version}: run `make version VERSION={tag[1:]}`")
    heading = rf"^## {re.escape(project.version)} - \d{{4}}-\d\d-\d\d$"
    changelog = (project.root / version.CHANGELOG).read_text(encoding="utf-8")
    if "-rc." not in tag and not re.search(heading, changelog, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no {project.version}: run `make version VERSION={project.version}`")


def export(project: Project, directory: Path) -> None:
    """Copy the files under version control to a directory, as they are now."""
    for name in filter(None, run("git", "ls-files", "-z", cwd=project.root).split("\0")):
        path = project.root / name
        if path.is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
