"""Digests, checksums and reproducible archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKSUMS = "SHA256SUMS"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(directory: Path) -> None:
    """Write SHA256SUMS, which ``sha256sum --check`` reads, for all other files of the directory."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(directory.iterdir()) if path.name != CHECKSUMS]
    (directory / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def tar_gz(files: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a compressed archive of files by name that depends on nothing else."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), epoch, 0o644
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), 9, mtime=epoch)


def compact_json(value: Any) -> bytes:
    """Return JSON that is the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
