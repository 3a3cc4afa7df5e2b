"""The image archives, and the index of all architectures that a registry serves.

``python -m hack.release.images DIST DIRECTORY`` writes an OCI image layout of that index, to be copied to a registry.
The digest of the index is known before anything is pushed, and the chart of the release names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.files import compact_json
from hack.image import build as image_build
from hack.release.errors import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.release.source import Project

_INDEX = "application/vnd.oci.image.index.v1+json"


def build(project: Project, output: Path, image: str) -> list[Path]:
    """Build an archive and an SBOM for each architecture, and return the archives. Raises ReleaseError."""
    settings = image_build.Settings(image, os.environ.get("BASE", ""), project.revision, project.epoch)
    try:
        return [image_build.build(arch, output, settings).path for arch in image_build.ARCHITECTURES]
    except image_build.BuildError as error:
        raise ReleaseError(str(error)) from error


def write_layout(archives: Sequence[Path], directory: Path) -> str:
    """Write an OCI image layout with an index of the images in these archives, and return the digest of the index."""
    entries = []
    directory.mkdir(parents=True, exist_ok=True)
    for path in archives:
        # Python has filters for its own extraction since 3.11.4 only, and warns without one in 3.12.
        subprocess.run(["tar", "--extract", f"--file={path}", f"--directory={directory}"], check=True)
        (entry,) = json.loads((directory / "index.json").read_bytes())["manifests"]
        entries.append({name: value for name, value in entry.items() if name != "annotations"})
    index = _index(entries)
    digest = hashlib.sha256(index).hexdigest()
    (directory / "blobs" / "sha256" / digest).write_bytes(index)
    entry = {"mediaType": _INDEX, "digest": f"sha256:{digest}", "size": len(index)}
    named = entry | {"annotations": {"org.opencontainers.image.ref.name": "release"}}
    (directory / "index.json").write_bytes(_index([named]))
    (directory / "manifest.json").unlink()  # of the last image, for Docker
    return f"sha256:{digest}"


def _index(entries: list[dict[str, Any]]) -> bytes:
    return compact_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries})


if __name__ == "__main__":
    dist, target = map(Path, sys.argv[1:])
    print(write_layout(sorted(dist.glob("aosp-device-plugin-*-linux-*.tar")), target))
