"""A Python that is not installed, from the packages of Debian's suite testing, which has the newest.

The packages are unpacked into the cache, with the libraries that they depend on, the C library included: the program is
changed so that it loads these. A virtual environment made with it therefore works like any other on this machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.cache import cached, key, root
from tests.e2e.common.packages import MissingError, command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite, unpack, versions

_SUITE: Final = "testing"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_LOADER: Final = f"{_LIBRARIES}/ld-linux-x86-64.so.2"
_WHEELS: Final = "/usr/share/python-wheels/"
"""The directory from which Debian's ensurepip installs pip."""


def found(version: str) -> str | None:
    """Return the interpreter of a version, such as "3.14", that the cache has."""
    return next(map(str, root().glob(f"python-{version}-*/usr/bin/python{version}")), None)


def get(version: str) -> str:
    """Return the interpreter of a version, and get it if the cache does not have it. Raises MissingError."""
    if os.geteuid() != 0:
        raise MissingError("not installed, and getting its packages requires root")
    name = f"python-{version}-{key([_SUITE, Path(__file__)])}"
    return str(cached(name, lambda path: _get(version, path, root() / name)) / f"usr/bin/python{version}")


def _get(version: str, directory: Path, final: Path) -> None:
    """Fill a directory that will be renamed to ``final``."""
    packages.install(["patchelf"])
    suite = Suite(_SUITE, directory / "apt")
    files = suite.download_all(f"python{version}-venv")
    say(f"# Python of Debian {_SUITE}: {', '.join(name for name in versions(files) if name.startswith('python'))}")
    unpack(files, directory)
    shutil.rmtree(directory / "apt")
    program = directory / f"usr/bin/python{version}"
    # DT_RPATH, unlike DT_RUNPATH, also applies to what the loaded modules depend on.
    paths = ("--set-interpreter", str(final / _LOADER), "--force-rpath", "--set-rpath", str(final / _LIBRARIES))
    command("patchelf", *paths, str(program))
    for settings in (directory / f"usr/lib/python{version}").glob("_sysconfigdata_*.py"):
        if not settings.is_symlink():
            settings.write_text(settings.read_text().replace(f"'{_WHEELS}'", f"'{final}{_WHEELS}'"))
