"""Images as docker-archives: of a layer, and of a static busybox."""

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

from hack.files import compact_json, tar
from tests.e2e.common.packages import command

BUSYBOX: Final = "localhost/busybox:1"


def busybox_image(path: Path, *programs: Path, tree: Path | None = None) -> None:
    """Write an image of busybox, static ``programs`` and the files of ``tree``; without a command it sleeps."""
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
        if tree is not None:
            present = {f"bin/{name}" for name in ("busybox", "sh")}
            archive.add(tree, ".", filter=lambda member: None if member.name.removeprefix("./") in present else member)
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        archive.addfile(shell)
    write(path, layer.getvalue(), BUSYBOX, Cmd=["/bin/busybox", "sleep", "86400"], Env=["PATH=/bin"])


def write(path: Path, layer: bytes, *tags: str, **config: Any) -> None:
    """Write an image of one layer, a tar archive; ``config`` is what containers run by default."""
    files = {
        "config.json": compact_json(
            {
                "architecture": command("dpkg", "--print-architecture").strip(),
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            }
        ),
        "layer.tar": layer,
        "manifest.json": compact_json([{"Config": "config.json", "RepoTags": tags, "Layers": ["layer.tar"]}]),
    }
    path.write_bytes(tar(files, 0))
