"""The release notes: how to install this release, its changes, and its files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hack import version
from hack.files import sha256
from hack.release.errors import ReleaseError
from hack.release.links import absolute

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

NAME = "release-notes.md"


def render(project: Project, output: Path, image: str, digest: str, source_url: str) -> str:
    """Return the notes for the files that are in the release's directory already."""
    changelog = (project.root / version.CHANGELOG).read_text(encoding="utf-8")
    parts = [
        f"# aosp-device-plugin {project.version}",
        _install(project, image, digest),
        "## Changes",
        absolute(changes(changelog, project.version), source_url, f"v{project.version}"),
        "## Files",
        "| file | SHA-256 |\n|---|---|\n"
        + "\n".join(f"| `{path.name}` | `{sha256(path)}` |" for path in sorted(output.iterdir())),
        "`sha256sum --check SHA256SUMS` checks files that were downloaded.",
    ]
    if source_url:
        parts.append(_verification(source_url))
    return "\n\n".join(parts) + "\n"


def _install(project: Project, image: str, digest: str) -> str:
    chart, name = f"aosp-device-plugin-{project.version}.tgz", f"{image}:{project.version}"
    archive = f"aosp-device-plugin-{project.version}-linux-ARCH.tar"
    if not digest:
        return f"Import `{archive}` on each node as `{name}`, and install `{chart}` with Helm."
    return (
        f"Install `{chart}` with Helm. Its image is `{image}@{digest}`. Nodes without access to that registry import"
        f" `{archive}`; install the chart with `--set image.digest=` then."
    )


def changes(changelog: str, current: str) -> str:
    """Return the entries of a version, or the unreleased ones if it has none. Raises ReleaseError without any."""
    for heading in (rf"## {re.escape(current)} - \S+", re.escape(version.UNRELEASED)):
        found = re.search(rf"^{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
        if found and found[1].strip():
            return found[1].strip()
    raise ReleaseError(f"CHANGELOG.md has no entries for {current}, and none that are unreleased")


def _verification(source_url: str) -> str:
    identity = f"{source_url}/.github/workflows/release.yml@refs/tags/"
    return f"""\
The release workflow signs `SHA256SUMS`, the image and the chart with its own identity:

    cosign verify-blob --bundle SHA256SUMS.sigstore.json \\
      --certificate-identity-regexp '^{re.escape(identity)}' \\
      --certificate-oidc-issuer https://token.actions.githubusercontent.com SHA256SUMS"""
