"""A cache outside the checkout for parts that are slow to build. A part's name contains a digest of its sources."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def root() -> Path:
    """Return the directory of the cache, and create it if it does not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(home, "aosp-device-plugin")
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(parts: Iterable[str | Path]) -> str:
    """Return a digest of strings, of the contents of files, and of all files in directories."""
    digest = hashlib.sha256()
    for part in parts:
        for name, content in [("", part.encode())] if isinstance(part, str) else _files(part):
            digest.update(f"{name}:{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:20]


def _files(path: Path) -> list[tuple[str, bytes]]:
    """Return name and content of a file, or of all files in a directory except compiled Python."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in files if "__pycache__" not in file.parts]
    return [(str(file.relative_to(path.parent)), file.read_bytes()) for file in files]


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the directory with this name; if it does not exist, build it in a temporary directory and rename that.

    A process that wants what another one is building waits for it.
    """
    path = root() / name
    with contextlib.suppress(OSError):
        os.utime(path)  # evict keeps what was used last
    if path.exists():
        return path
    with exclusive(name):
        if not path.exists():
            temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))
            try:
                build(temporary)
                temporary.chmod(0o755)
                temporary.rename(path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return path


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold a lock between processes."""
    with (root() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def evict(prefix: str, *, keep: int) -> None:
    """Remove all directories with a prefix but those that were built or used last."""
    paths = sorted(root().glob(f"{prefix}*"), key=lambda path: path.stat().st_mtime)
    for path in paths[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
