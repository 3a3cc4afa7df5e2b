"""Build an image of a static busybox as a docker-archive."""

import hashlib
import io
import json
import platform
import shutil
import tarfile
from pathlib import Path
from typing import Final

BUSYBOX: Final = "localhost/busybox:1"


def busybox_image(path: Path, *programs: Path, tree: Path | None = None) -> None:
    """Write an image of busybox, static ``programs`` and the files of ``tree``; without a command it sleeps."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "no busybox"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "tmp"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        tar.add(busybox, "bin/busybox")
        for program in programs:
            tar.add(program, f"bin/{program.name}")
        if tree is not None:
            present = {f"bin/{name}" for name in ("busybox", "sh")}
            tar.add(tree, ".", filter=lambda member: None if member.name.removeprefix("./") in present else member)
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(shell)
    content = layer.getvalue()
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Cmd": ["/bin/busybox", "sleep", "86400"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [BUSYBOX], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        _add(image, "config.json", json.dumps(config).encode())
        _add(image, "layer.tar", content)
        _add(image, "manifest.json", json.dumps(manifest).encode())


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
