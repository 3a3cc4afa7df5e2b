"""The simulated host does what this machine's kernel does: the same calls have the same results and file events."""

import ctypes
import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.framework import inotify
from tests.simulation.host import OWN, Host
from tests.simulation.processes import CURRENT, Process, SimulatedOs, System

ROOT = f"{OWN[0]}/test"
"""A place where the plugin may change files."""
NAMES = ("a", "b", "link", "d", "d/a", "d/b", "d/link", "e", "e/a", "a/x", "link/a")
TARGETS = ("a", "b", "d", "d/a", "link", "../a", "../d", "nowhere")
CALLS = 400


class Kernel:
    """This machine's kernel, in a directory."""

    def __init__(self, root: str) -> None:
        self.os: Any = os
        self.root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._inotify >= 0

    def watch(self, path: str) -> None:
        """Watch a directory as the plugin does."""
        mask = int(inotify._MASK)
        assert self._libc.inotify_add_watch(self._inotify, os.fsencode(self.root + path), mask) >= 0

    def changed(self) -> bool:
        """Return whether a watched directory has changed since the last call."""
        try:
            return bool(os.read(self._inotify, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._inotify)


class Simulated:
    """The same, simulated."""

    def __init__(self) -> None:
        self.root = ROOT
        self._host = System.host = Host(0, lambda: 0.0)
        self._host.files.make_directories(ROOT)
        self.os: Any = SimulatedOs()
        self._changes = 0
        CURRENT.set(Process(self._host, 1))

    def watch(self, path: str) -> None:
        """Watch a directory."""
        self._host.files.lookup(self.root + path).watchers.append(self._note)

    def changed(self) -> bool:
        """Return whether a watched directory has changed since the last call."""
        changes, self._changes = self._changes, 0
        return changes > 0

    def _note(self) -> None:
        self._changes += 1


Side = Kernel | Simulated


def _created(side: Side, path: str, _other: str) -> None:
    side.os.close(side.os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _opened(side: Side, path: str, _other: str) -> None:
    side.os.close(side.os.open(path, os.O_RDONLY | os.O_NOFOLLOW))


def _linked(side: Side, path: str, target: str) -> None:
    side.os.symlink(target, path)


def _resolved(side: Side, path: str, _other: str) -> str:
    side.os.stat(path)
    return str(side.os.path.realpath(path)).removeprefix(os.path.dirname(side.root))


OPERATIONS: dict[str, Callable[[Side, str, str], object]] = {
    "create": _created,
    "open": _opened,
    "mkdir": lambda side, path, _: side.os.mkdir(path),
    "rmdir": lambda side, path, _: side.os.rmdir(path),
    "unlink": lambda side, path, _: side.os.unlink(path),
    "rename": lambda side, path, other: side.os.rename(path, f"{side.root}/{other}"),
    "symlink": _linked,
    "readlink": lambda side, path, _: side.os.readlink(path),
    "lstat": lambda side, path, _: stat.S_IFMT(side.os.lstat(path).st_mode),
    "stat": lambda side, path, _: stat.S_IFMT(side.os.stat(path).st_mode),
    "listdir": lambda side, path, _: sorted(side.os.listdir(path)),
    "access": lambda side, path, _: side.os.access(path, os.R_OK),
    "exists": lambda side, path, _: side.os.path.exists(path),
    "lexists": lambda side, path, _: side.os.path.lexists(path),
    "realpath": _resolved,
}


def _outcome(side: Side, name: str, path: str, other: str) -> tuple[object, bool]:
    """Return the result of a call or its error, and whether there was a file event."""
    try:
        result = OPERATIONS[name](side, f"{side.root}/{path}", other)
    except OSError as error:
        result = errno.errorcode[error.errno or 0]
    return result, side.changed()


@pytest.mark.parametrize("seed", range(20))
def test_calls_have_the_same_results_and_events(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeatable
    kernel, simulated = Kernel(str(tmp_path / "test")), Simulated()
    (tmp_path / "test").mkdir()
    try:
        for side in (kernel, simulated):
            side.os.mkdir(f"{side.root}/d")
            side.watch("")
            side.watch("/d")
        for number in range(CALLS):
            name = rng.choice([*OPERATIONS])
            path, other = rng.choice(NAMES), rng.choice(TARGETS if name == "symlink" else NAMES)
            if name == "rename" and path == "d":
                continue  # the directory that is watched
            expected = _outcome(kernel, name, path, other)
            assert _outcome(simulated, name, path, other) == expected, f"call {number}: {name} {path} {other}"
    finally:
        kernel.close()
