"""Archives of images: what another tool wrote becomes an archive that depends on the files and settings alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from hack.image import archive
from hack.image.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME = "localhost/aosp-device-plugin:1.2.3"
LABELS = {"org.opencontainers.image.title": "plugin", "io.buildah.version": "1.28.2"}
SETTINGS = {"User": "0", "Env": ["PATH=/bin"], "Entrypoint": ["plugin"], "Labels": LABELS, "OnBuild": None}


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


FILES = (
    entry("./", tarfile.DIRTYPE, mode=0o755),
    entry("./tmp", tarfile.DIRTYPE, mode=0o1777),
    entry("./bin/plugin", content=b"#!python", mode=0o755),
    entry("./bin/link", tarfile.SYMTYPE, linkname="plugin"),
)


def built(path: Path, *layers: Sequence[tuple[tarfile.TarInfo, bytes]], pack: bool = False) -> Path:
    """Write an archive as docker, podman and buildah do."""
    contents = {}
    for number, layer in enumerate(layers):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for info, content in layer:
                tar.addfile(info, io.BytesIO(content))
        contents[f"{number}.tar"] = gzip.compress(buffer.getvalue()) if pack else buffer.getvalue()
    manifest = [{"Config": "config.json", "RepoTags": ["x"], "Layers": list(contents)}]
    contents["config.json"] = json.dumps({"architecture": "arm64", "config": SETTINGS}).encode()
    contents["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items():
            tar.addfile(*_member(name, content))
    return path


def _member(name: str, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info, data = entry(name, content=content)
    return info, io.BytesIO(data)


def written(path: Path, image: archive.Image, epoch: int = 1000) -> dict[str, bytes]:
    """Write an archive, and return its files by name."""
    archive.write(path, image, NAME, epoch)
    with tarfile.open(path) as tar:
        return {info.name: _read(tar, info) for info in tar}


def _read(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    return file.read() if file else b""


def test_image_has_the_files_of_all_layers(tmp_path: Path) -> None:
    image = archive.read(built(tmp_path / "a", FILES, [entry("bin/plugin", content=b"new")]))
    assert sorted(image.files) == ["bin/link", "bin/plugin", "tmp"]
    assert image.text("bin/plugin") == "new"
    assert image.arch == "arm64"


def test_settings_are_those_that_containers_have_and_labels_are_those_of_the_image_specification(
    tmp_path: Path,
) -> None:
    image = archive.read(built(tmp_path / "a", FILES))
    labels = {"org.opencontainers.image.title": "plugin"}
    assert image.settings == {"User": "0", "Env": ["PATH=/bin"], "Entrypoint": ["plugin"], "Labels": labels}


def test_layer_that_removes_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"a layer removes bin/\.wh\.plugin"):
        archive.read(built(tmp_path / "a", FILES, [entry("bin/.wh.plugin")]))


def test_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="dev/null is a device"):
        archive.read(built(tmp_path / "a", [entry("dev/null", tarfile.CHRTYPE)]))


def test_order_times_owners_and_compression_of_the_builder_make_no_difference(tmp_path: Path) -> None:
    other = [entry(info.name, info.type, content, mode=info.mode, linkname=info.linkname) for info, content in FILES]
    for number, (info, _) in enumerate(other):
        info.mtime, info.uid, info.gid, info.uname = number + 7, 1000, 1000, "builder"
    first = archive.read(built(tmp_path / "a", FILES))
    second = archive.read(built(tmp_path / "b", other[::-1], pack=True))
    archive.write(tmp_path / "first", first, NAME, 1000)
    archive.write(tmp_path / "second", second, NAME, 1000)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_hard_link_becomes_a_file_of_its_own(tmp_path: Path) -> None:
    link = entry("bin/same", tarfile.LNKTYPE, linkname="./bin/plugin", mode=0o755)
    image = archive.read(built(tmp_path / "a", [*FILES, link]))
    archive.write(tmp_path / "out", image, NAME, 1000)
    again = archive.read(tmp_path / "out")
    assert again.text("bin/same") == "#!python"
    assert again.files["bin/same"].info.isreg()


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    archive.write(tmp_path / "out", archive.read(built(tmp_path / "a", FILES)), NAME, 1000)
    files = archive.read(tmp_path / "out").files
    assert {name: file.info.mode for name, file in files.items()} == {
        "tmp": 0o1777,
        "bin/plugin": 0o755,
        "bin/link": 0o644,
    }
    assert files["bin/link"].info.linkname == "plugin"
    assert {file.info.mtime for file in files.values()} == {1000}


def test_archive_is_an_oci_layout_whose_digests_are_right(tmp_path: Path) -> None:
    contents = written(tmp_path / "out", archive.read(built(tmp_path / "a", FILES)))
    assert json.loads(contents["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for name, content in contents.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.rpartition("/")[2]
    (entry_,) = json.loads(contents["index.json"])["manifests"]
    manifest = json.loads(contents[f"blobs/{entry_['digest'].replace(':', '/')}"])
    config = json.loads(contents[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    (layer,) = manifest["layers"]
    unpacked = gzip.decompress(contents[f"blobs/{layer['digest'].replace(':', '/')}"])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    assert (entry_["platform"], config["architecture"]) == ({"architecture": "arm64", "os": "linux"}, "arm64")


def test_archive_has_the_name_for_containerd_podman_and_docker(tmp_path: Path) -> None:
    contents = written(tmp_path / "out", archive.read(built(tmp_path / "a", FILES)))
    (entry_,) = json.loads(contents["index.json"])["manifests"]
    (docker,) = json.loads(contents["manifest.json"])
    assert entry_["annotations"] == {
        "io.containerd.image.name": NAME,
        "org.opencontainers.image.ref.name": "1.2.3",
    }
    assert docker["RepoTags"] == [NAME]
    assert {docker["Config"], *docker["Layers"]} <= set(contents)


def test_labels_are_annotations_of_the_manifest_too(tmp_path: Path) -> None:
    result = archive.write(tmp_path / "out", archive.read(built(tmp_path / "a", FILES)), NAME, 0)
    with tarfile.open(tmp_path / "out") as tar:
        manifest = json.loads(_read(tar, tar.getmember(f"blobs/{result.digest.replace(':', '/')}")))
    assert manifest["annotations"] == {
        "org.opencontainers.image.created": "1970-01-01T00:00:00Z",
        "org.opencontainers.image.title": "plugin",
    }
