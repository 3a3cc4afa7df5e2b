"""Images as docker-archives: of a layer, and of a static busybox."""

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

from hack.files import compact_json, tar
from hack.image.build import own_arch

BUSYBOX: Final = "localhost/busybox:1"


def busybox_image(path: Path, *programs: Path) -> None:
    """Write an image of busybox and static ``programs``; without a command it sleeps."""
    busybox = shutil.which("busybox")
    assert busybox is not None, "no busybox"
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name in ("bin", "tmp"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        archive.add(busybox, "bin/busybox")
        for program in programs:
            archive.add(program, f"bin/{program.name}")
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        archive.addfile(shell)
    _write_busybox(path, layer)


def tree_image(path: Path, tree: Path, arch: str = "") -> None:
    """Write the same image of the files of ``tree``, which has a busybox of this architecture."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.add(tree, ".")
    _write_busybox(path, layer, arch)


def _write_busybox(path: Path, layer: io.BytesIO, arch: str = "") -> None:
    write(path, layer.getvalue(), BUSYBOX, arch=arch, Cmd=["/bin/busybox", "sleep", "86400"], Env=["PATH=/bin"])


def write(path: Path, layer: bytes, *tags: str, arch: str = "", **config: Any) -> None:
    """Write an image of one layer, a tar archive; ``config`` is what containers run by default.

    ``arch`` is the architecture, by default this machine's.
    """
    files = {
        "config.json": compact_json(
            {
                "architecture": arch or own_arch(),
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            }
        ),
        "layer.tar": layer,
        "manifest.json": compact_json([{"Config": "config.json", "RepoTags": tags, "Layers": ["layer.tar"]}]),
    }
    path.write_bytes(tar(files, 0))
