"""The packed chart, with the image that the release publishes.

``helm package`` gives every file the current time, so its archive differs each time; this one does not.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from hack.release.errors import ReleaseError, run
from hack.release.files import tar_gz

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

DIRECTORY = "deploy/chart"


def pack(project: Project, output: Path, image: str, digest: str, source_url: str) -> Path:
    """Write the chart's archive with these values of image.repository and image.digest, and return its path."""
    listed = run("git", "ls-files", "-z", DIRECTORY, cwd=project.root).split("\0")
    names = [name.removeprefix(f"{DIRECTORY}/") for name in listed if name and (project.root / name).is_file()]
    contents = {name: (project.root / DIRECTORY / name).read_bytes() for name in names}
    ignored = contents.get(".helmignore", b"").decode().splitlines()
    contents = {name: content for name, content in contents.items() if not _ignored(name, ignored)}
    contents["values.yaml"] = with_image(contents["values.yaml"].decode(), image, digest).encode()
    chart = with_source(contents["Chart.yaml"].decode(), project, source_url)
    contents["Chart.yaml"] = with_images(chart, project, image, digest).encode()
    # Helm reads Chart.yaml first.
    order = sorted(contents, key=lambda name: (name != "Chart.yaml", name))
    path = output / f"aosp-device-plugin-{project.version}.tgz"
    path.write_bytes(tar_gz({f"aosp-device-plugin/{name}": contents[name] for name in order}, project.epoch))
    return path


def _ignored(name: str, patterns: list[str]) -> bool:
    """Return whether .helmignore excludes a file: by a directory of its path, or by its name."""
    *directories, file = name.split("/")
    for pattern in filter(None, patterns):
        plain = pattern.strip("/")
        if pattern.endswith("/"):
            excluded = plain in (directories[:1] if pattern.startswith("/") else directories)
        else:
            excluded = fnmatch.fnmatchcase(file, plain)
        if excluded and not pattern.startswith("#"):
            return True
    return False


def with_image(values: str, image: str, digest: str) -> str:
    """Return values.yaml with the image, and every comment. Raises ReleaseError if a value is not where it was."""
    for key, value in (("repository", image), ("digest", digest)):
        found = re.search(rf'^image:\n(?:[ #].*\n|\n)*?  {key}: ("")$', values, re.MULTILINE)
        if found is None:
            raise ReleaseError(f"{DIRECTORY}/values.yaml has no empty image.{key}")
        values = f'{values[: found.start(1)]}"{value}"{values[found.end(1) :]}'
    return values


def with_images(chart: str, project: Project, image: str, digest: str) -> str:
    """Return Chart.yaml with the image for Artifact Hub, unless no registry has it."""
    if image.startswith("localhost/"):
        return chart
    name = f"{image}@{digest}" if digest else f"{image}:{project.version}"
    listed = f"\nannotations:\n  artifacthub.io/images: |\n    - name: aosp-device-plugin\n      image: {name}\n"
    return chart.replace("\nannotations:\n", listed, 1)


def with_source(chart: str, project: Project, source_url: str) -> str:
    """Return Chart.yaml with the public repository, and with what Artifact Hub shows of a release candidate."""
    if source_url and not re.search(r"^home:", chart, re.MULTILINE):
        chart = chart.replace("\nkeywords:", f"\nhome: {source_url}\nsources:\n  - {source_url}\nkeywords:", 1)
    if "-rc." in project.version:
        chart = chart.replace("\nannotations:\n", '\nannotations:\n  artifacthub.io/prerelease: "true"\n', 1)
    return chart
