"""Checksums and archives that depend on the content alone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKSUMS = "SHA256SUMS"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_checksums(directory: Path) -> None:
    """Write SHA256SUMS, which ``sha256sum --check`` reads, for all other files of the directory."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(directory.iterdir()) if path.name != CHECKSUMS]
    (directory / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def tar(files: Mapping[str, bytes], epoch: int) -> bytes:
    """Return an archive of files by name, as of a time in seconds since 1970. Programs are executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), epoch, 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipapp(files: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a program that is an archive of files by name, of which Python runs __main__.py."""
    buffer = io.BytesIO(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, time.gmtime(epoch)[:6]), content)
    return buffer.getvalue()


def compact_json(value: Any) -> bytes:
    """Return JSON that is the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
