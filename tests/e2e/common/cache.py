"""Where what is slow to make is kept: outside the checkout, under a name that follows from what it is made of."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def root() -> Path:
    """Return the directory of everything that is kept, which is there then."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(home, "aosp-device-plugin")
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(parts: Iterable[str | Path]) -> str:
    """Return a name for the contents of files, and of directories with all that is in them, and for texts."""
    digest = hashlib.sha256()
    for part in parts:
        for name, content in [("", part.encode())] if isinstance(part, str) else _files(part):
            digest.update(f"{name}:{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:20]


def _files(path: Path) -> list[tuple[str, bytes]]:
    """Return name and content of the file, or of all in the directory but what an interpreter leaves there."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    files = [one for one in files if "__pycache__" not in one.parts]
    return [(str(one.relative_to(path.parent)), one.read_bytes()) for one in files]


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of this name; if there is none, have it made in another one and renamed."""
    path = root() / name
    if not path.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))
        try:
            make(fresh)
            fresh.chmod(0o755)
            with contextlib.suppress(OSError):  # somebody else was faster
                fresh.rename(path)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        assert path.exists(), f"{path} could not be made"
    return path


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Wait until no other process is inside, and keep others out."""
    with (root() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def forget(prefix: str, *, keep: int) -> None:
    """Remove all but the newest of what is kept under a prefix."""
    every = sorted(root().glob(f"{prefix}*"), key=lambda path: path.stat().st_mtime)
    for path in every[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
