"""Where what is slow to make is kept: outside the checkout, under a name that follows from what it is made of."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def root() -> Path:
    """Return the directory of everything that is kept, which is there then."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(home, "aosp-device-plugin")
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(parts: Iterable[str | Path]) -> str:
    """Return a name for texts and for the contents of files."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part.read_bytes()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:20]


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of this name; if there is none, have it made in another one and renamed."""
    path = root() / name
    if not path.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))
        try:
            make(fresh)
            fresh.chmod(0o755)
            fresh.rename(path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return path
