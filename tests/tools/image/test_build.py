"""The archive that is made of what buildah wrote; buildah is a script here."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin import __version__
from hack.image.build import Settings, build
from tests.support import write_files

NAME = f"registry.example.com/plugin:{__version__}"
SETTINGS = Settings("registry.example.com/plugin", "base:1", "abc", 1000)
BUILDAH = r"""#!/usr/bin/env python3
# Takes part of an image from the directory of the script.
import os, pathlib, shutil, sys
here = pathlib.Path(__file__).parent
for word in sys.argv:
    if word.startswith("--output="):
        shutil.copytree(here / "root", word.removeprefix("--output="))
    if word.startswith("oci:"):
        shutil.copytree(here / "layout", word.split(":")[1])
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with buildah that is the first one in PATH."""
    directory = tmp_path / "tools"
    files = {
        "buildah": BUILDAH,
        "root/usr/lib/os-release": "ID=debian\nVERSION_ID=13\n",
        "root/var/lib/dpkg/status.d/none.md5sums": "",
        "layout/oci-layout": "{}",
    }
    write_files(directory, files)
    (directory / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    layer, config = blob(directory, b"layer"), blob(directory, b"{}")
    manifest = blob(directory, json.dumps({"config": config, "layers": [layer]}).encode())
    entry = manifest | {"annotations": {"org.opencontainers.image.ref.name": __version__}}
    (directory / "layout/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return directory


def blob(tools: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (tools / "layout/blobs/sha256").mkdir(parents=True, exist_ok=True)
    (tools / "layout/blobs/sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def read(path: Path, name: str) -> Any:
    with tarfile.open(path) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return json.loads(file.read())


def test_the_archive_has_the_image_under_its_full_name(tools: Path, tmp_path: Path) -> None:
    """Containerd reads the annotation, and Docker manifest.json."""
    built = build("arm64", tmp_path / "out", SETTINGS)
    assert built.path == tmp_path / "out" / f"aosp-device-plugin-{__version__}-linux-arm64.tar"
    (entry,) = read(built.path, "index.json")["manifests"]
    assert entry["digest"] == built.digest
    assert entry["annotations"]["io.containerd.image.name"] == NAME
    (docker,) = read(built.path, "manifest.json")
    assert docker["RepoTags"] == [NAME]
    with tarfile.open(built.path) as archive:
        assert {docker["Config"], *docker["Layers"], "oci-layout"} <= set(archive.getnames())


def test_archive_and_sbom_depend_on_the_image_alone(tools: Path, tmp_path: Path) -> None:
    for directory in ("first", "second"):
        build("amd64", tmp_path / directory, SETTINGS)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert set(first) == {f"aosp-device-plugin-{__version__}-linux-amd64{suffix}" for suffix in (".tar", ".sbom.json")}
    assert first == second
