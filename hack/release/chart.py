"""The packed chart, with the image that the release publishes.

``helm package`` gives every file the current time, so its archive differs each time; this one does not.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from hack.files import tar
from hack.release.errors import ReleaseError, run

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

DIRECTORY = "deploy/chart"
_ANNOTATIONS = "\nannotations:\n"


def pack(project: Project, output: Path, image: str, digest: str, source_url: str) -> Path:
    """Write the chart's archive with an image and with links to the runbook as its values, and return its path."""
    # /ci/ is in .helmignore; its other patterns are of files that are not under version control.
    listed = run("git", "ls-files", "-z", DIRECTORY, f":!{DIRECTORY}/ci", cwd=project.root).split("\0")
    paths = {name.removeprefix(f"{DIRECTORY}/"): project.root / name for name in listed if name}
    contents = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
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
    archive = tar({f"aosp-device-plugin/{name}": contents[name] for name in order}, project.epoch)
    path.write_bytes(gzip.compress(archive, mtime=project.epoch))
    return path


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
