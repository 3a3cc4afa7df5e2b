"""The plugin's image with one more layer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def add_files(source: Path, target: Path, files: Mapping[str, bytes]) -> None:
    """Write a copy of a docker-archive with one more layer of files."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    data = layer.getvalue()
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        (manifest,) = json.loads(_read(old, "manifest.json"))
        config = json.loads(_read(old, manifest["Config"]))
        config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(data).hexdigest()}")
        config.pop("history", None)  # it has an entry for each layer
        for layer_name in manifest["Layers"]:
            member = old.getmember(layer_name)
            new.addfile(member, old.extractfile(member))
        _add(new, "config.json", json.dumps(config).encode())
        _add(new, "break.tar", data)
        described = manifest | {"Config": "config.json", "Layers": [*manifest["Layers"], "break.tar"]}
        _add(new, "manifest.json", json.dumps([described]).encode())


def site_packages(source: Path) -> str:
    """Return the path of the plugin's packages in its image, found by the name of a file of the plugin."""
    with tarfile.open(source) as image:
        (manifest,) = json.loads(_read(image, "manifest.json"))
        for layer_name in manifest["Layers"]:
            with tarfile.open(fileobj=image.extractfile(layer_name)) as layer:
                for name in layer.getnames():
                    if name.endswith("/site-packages/aosp_plugin/__init__.py"):
                        return name.removesuffix("/aosp_plugin/__init__.py")
    raise LookupError(f"{source} has no plugin")


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file.read()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))
