"""A Python that is not installed, built from the source in Debian's archive and kept in the cache.

The suite testing has the newest Python that Debian builds. What is built is upstream's source, without Debian's
patches, which move packages to other directories.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from tests.e2e.common import packages
from tests.e2e.common.cache import cached, key, root
from tests.e2e.common.packages import BrokenError, MissingError, command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite

if TYPE_CHECKING:
    from pathlib import Path

_SUITE: Final = "testing"
_LIBRARIES: Final = (
    *("libbz2-dev", "libffi-dev", "liblzma-dev", "libncurses-dev", "libreadline-dev", "libsqlite3-dev", "libssl-dev"),
    *("pkg-config", "uuid-dev", "zlib1g-dev"),
)
_OPTIONS: Final = ("--without-ensurepip", "--disable-test-modules", "--without-static-libpython")
"""The modules of CPython's own tests, and its static library, take half of the space."""


def found(version: str) -> str | None:
    """Return the interpreter of a version, such as "3.14", that the cache has."""
    return next(map(str, root().glob(f"python-{version}-*/usr/bin/python{version}")), None)


def build(version: str) -> str:
    """Return the interpreter of a version, and build it if the cache has none. Raises MissingError and BrokenError."""
    if os.geteuid() != 0:
        raise MissingError("not installed, and building it requires root")
    directory = cached(f"python-{version}-{key([_SUITE, *_OPTIONS])}", lambda path: _build(version, path))
    return str(directory / f"usr/bin/python{version}")


def _build(version: str, directory: Path) -> None:
    work = directory / "work"
    for name in ("source", "tree"):
        (work / name).mkdir(parents=True)
    suite = Suite(_SUITE, work / "apt", sources=True)
    say(f"# building Python {suite.field(f'python{version}', 'Version')}: takes minutes, once")
    suite.source(f"python{version}", work / "source")
    (archive,) = (work / "source").glob("*.orig.tar.*z")
    packages.install((*_LIBRARIES, "gcc", "make", "xz-utils"))
    tree = work / "tree"
    command("tar", "--extract", "--strip-components=1", f"--file={archive}", directory=tree)
    # It is moved after the build, and finds its libraries relative to the program.
    command("./configure", "--quiet", "--prefix=/usr", *_OPTIONS, directory=tree, seconds=3600, error=BrokenError)
    command("make", f"--jobs={os.cpu_count()}", "--quiet", directory=tree, seconds=7200, error=BrokenError)
    command("make", "--quiet", "altinstall", f"DESTDIR={directory}", directory=tree, seconds=3600, error=BrokenError)
    shutil.rmtree(work)
