"""The packed chart and the other files of ``deploy``, with the image that the release publishes.

``helm package`` gives every file the current time, so its archive differs each time; this one does not.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from hack.files import tar
from hack.image.build import NAME
from hack.release.errors import ReleaseError, run

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

DIRECTORY = "deploy/chart"
_ANNOTATIONS = "\nannotations:\n"


def pack(project: Project, output: Path, image: str, digest: str, source_url: str) -> Path:
    """Write the chart's archive with an image and with links to the runbook as its values, and return its path."""
    # /ci/ is in .helmignore; its other patterns are of files that are not under version control.
    contents = {
        name.removeprefix(f"{DIRECTORY}/"): content
        for name, content in _contents(project, DIRECTORY, f":!{DIRECTORY}/ci").items()
    }
    values = contents["values.yaml"].decode()
    values = _replace(values, '\n  repository: ""\n', f'\n  repository: "{image}"\n')
    values = _replace(values, '\n  digest: ""\n', f'\n  digest: "{digest}"\n')
    if source_url:
        runbook = f"{source_url}/blob/v{project.version}/docs/runbook.md"
        values = _replace(values, "\n  verify: binder\n", f"\n  verify: binder\n  runbook_url: {runbook}\n")
    contents["values.yaml"] = values.encode()
    contents["Chart.yaml"] = _metadata(contents["Chart.yaml"].decode(), project, image, digest, source_url).encode()
    # Helm reads Chart.yaml first.
    order = sorted(contents, key=lambda name: (name != "Chart.yaml", name))
    path = output / f"aosp-device-plugin-{project.version}.tgz"
    _write(path, {f"aosp-device-plugin/{name}": contents[name] for name in order}, project)
    return path


def pack_manifests(project: Project, output: Path, image: str) -> Path:
    """Write an archive of what the pages install without the chart, and return its path."""
    local, released = (f"{name}:{project.version}".encode() for name in (NAME, image))
    contents = _contents(project, "deploy/*/*", "deploy/remove.yaml", f":!{DIRECTORY}")
    path = output / f"aosp-device-plugin-{project.version}-deploy.tar.gz"
    _write(path, {name: content.replace(local, released) for name, content in contents.items()}, project)
    return path


def _contents(project: Project, *patterns: str) -> dict[str, bytes]:
    """Return the files under version control that match patterns of git, by name."""
    listed = run("git", "ls-files", "-z", *patterns, cwd=project.root).split("\0")
    return {name: (project.root / name).read_bytes() for name in listed if (project.root / name).is_file()}


def _write(path: Path, files: dict[str, bytes], project: Project) -> None:
    path.write_bytes(gzip.compress(tar(files, project.epoch), mtime=project.epoch))


def _metadata(chart: str, project: Project, image: str, digest: str, source_url: str) -> str:
    """Return Chart.yaml with the public repository, and with what Artifact Hub shows of a release."""
    if source_url:
        chart = _replace(chart, "\nkeywords:\n", f"\nhome: {source_url}\nsources:\n  - {source_url}\nkeywords:\n")
        guide, issues = f"{source_url}/blob/v{project.version}/docs/deploy.md", f"{source_url}/issues"
        links = f"    - name: documentation\n      url: {guide}\n    - name: support\n      url: {issues}\n"
        chart = _replace(chart, _ANNOTATIONS, f"{_ANNOTATIONS}  artifacthub.io/links: |\n{links}")
    if "-rc." in project.version:
        chart = _replace(chart, _ANNOTATIONS, f'{_ANNOTATIONS}  artifacthub.io/prerelease: "true"\n')
    if not image.startswith("localhost/"):
        name = f"{image}@{digest}" if digest else f"{image}:{project.version}"
        listed = f"  artifacthub.io/images: |\n    - name: aosp-device-plugin\n      image: {name}\n"
        chart = _replace(chart, _ANNOTATIONS, f"{_ANNOTATIONS}{listed}")
    return chart


def _replace(text: str, old: str, new: str) -> str:
    """Return a file with a line replaced, and every comment. Raises ReleaseError unless the line is there once."""
    if text.count(old) != 1:
        raise ReleaseError(f"{DIRECTORY} has {text.count(old)} lines {old.strip()} instead of one")
    return text.replace(old, new)
