"""The image archives, and the index of all architectures that a registry serves.

``python -m hack.release.images DIST DIRECTORY`` writes an OCI image layout of that index, to be copied to a registry.
The digest of the index is known before anything is pushed, and the chart of the release names it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.release.errors import ReleaseError, run
from hack.release.files import compact_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.release.source import Project

ARCHITECTURES = ("amd64", "arm64")
_INDEX = "application/vnd.oci.image.index.v1+json"


def build(project: Project, output: Path, image: str) -> list[Path]:
    """Build an archive and an SBOM for each architecture, and return the archives. Raises ReleaseError."""
    words = [word for arch in ARCHITECTURES for word in ("--arch", arch)]
    os.environ["IMAGE"] = image
    run(sys.executable, "-m", "hack.image", *words, "--output", str(output.resolve()), cwd=project.root)
    archives = [output / f"aosp-device-plugin-{project.version}-linux-{arch}.tar" for arch in ARCHITECTURES]
    for archive in archives:
        for path in (archive, archive.with_suffix(".sbom.json")):
            if not path.exists():
                raise ReleaseError(f"python -m hack.image did not write {path.name}")
    return archives


def index(archives: Sequence[Path]) -> bytes:
    """Return the index of the images in these archives: the same for the same images."""
    return compact_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [_entry(path) for path in archives]})


def index_digest(archives: Sequence[Path]) -> str:
    """Return the digest by which a registry knows the index."""
    return _digest(index(archives))


def write_layout(archives: Sequence[Path], directory: Path) -> str:
    """Write an OCI image layout with the index and all that it refers to, and return the digest of the index."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for path in archives:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.startswith("blobs/sha256/"):
                    (blobs / Path(member.name).name).write_bytes(_content(archive, member.name))
    content = index(archives)
    (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
    entry = {"mediaType": _INDEX, "digest": _digest(content), "size": len(content)}
    named = entry | {"annotations": {"org.opencontainers.image.ref.name": "release"}}
    (directory / "index.json").write_bytes(
        compact_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [named]})
    )
    (directory / "oci-layout").write_bytes(compact_json({"imageLayoutVersion": "1.0.0"}))
    return _digest(content)


def _entry(path: Path) -> dict[str, Any]:
    """Return the descriptor of the one image of an archive, without the names that it has in this archive."""
    with tarfile.open(path) as archive:
        (entry,) = json.loads(_content(archive, "index.json"))["manifests"]
        manifest = json.loads(_content(archive, _blob(entry["digest"])))
        config = json.loads(_content(archive, _blob(manifest["config"]["digest"])))
    platform = {name: config[name] for name in ("architecture", "os", "variant") if name in config}
    return {name: entry[name] for name in ("mediaType", "digest", "size")} | {"platform": platform}


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ReleaseError(f"{name} is not a file")
    return file.read()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def main() -> int:
    """Write the layout of a release's images, and print the digest of its index."""
    dist, directory = map(Path, sys.argv[1:])
    print(write_layout(sorted(dist.glob("aosp-device-plugin-*-linux-*.tar")), directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
