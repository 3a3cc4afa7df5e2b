"""Installs wheels for the target's platform, and removes the files of packages that the plugin does not use."""

from __future__ import annotations

import csv
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_OLDEST: Final = 17
"""The minor version of the C library in the oldest platform tag of wheels: manylinux_2_17, or manylinux2014."""

LEFT_OUT: Final = (
    *("bin/*", "*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.cc", "*.h"),
    # Tests, and what other projects use for theirs.
    *("*/testing.py", "*/test_utils.py", "*/pytest_plugin.py", "*/testing_*.py", "*/_testcapi.*", "*_benchmark.py"),
    # Other systems.
    *("psutil/_psaix.py", "psutil/_psbsd.py", "psutil/_psosx.py", "psutil/_pssunos.py", "psutil/_pswindows.py"),
    # Certificates of public authorities, which gRPC reads for TLS. The kubelet's sockets have none.
    "grpc/_cython/_credentials/roots.pem",
    # Where and how pip installed something.
    *("*.dist-info/REQUESTED", "*.dist-info/direct_url.json"),
)
"""Files of packages that stay behind, as patterns, in which * also matches slashes."""


def install(arch: str, directory: str, arguments: Sequence[str]) -> None:
    """Install wheels that this Python's version can import on the target, without running anything of them."""
    # In the image's build, the virtual environment that runs this has no pip, but its base has. Elsewhere, a base may
    # have none: Debian's packages of Python have pip for virtual environments alone.
    python = sys.executable if importlib.util.find_spec("pip") else os.path.realpath(sys.executable)
    pip = [python, "-m", "pip", "install", "--no-compile", "--only-binary=:all:"]
    tags = [word for tag in platform_tags(arch) for word in ("--platform", tag)]
    subprocess.run([*pip, "--target", directory, "--upgrade", *tags, *arguments], check=True)


def platform_tags(arch: str, minor: int | None = None) -> list[str]:
    """Return the platform tags of wheels for a version of the C library, 2.``minor``, best first, as pip orders them.

    Without ``minor``, the version is that of this system, which is the target's too.
    """
    newest = int(platform.libc_ver()[1].split(".")[1]) if minor is None else minor
    machine = MACHINES[arch]
    return [
        *(f"manylinux_2_{number}_{machine}" for number in range(newest, _OLDEST - 1, -1)),
        f"manylinux2014_{machine}",
    ]


def clean(directory: str) -> None:
    """Remove the files that match ``LEFT_OUT`` and directories that are empty then, and correct the RECORD files."""
    for path in list(_files(directory)):
        if any(fnmatchcase(path, pattern) for pattern in LEFT_OUT):
            os.unlink(os.path.join(directory, path))
        else:
            # Some wheels have modules that claim to be programs.
            os.chmod(os.path.join(directory, path), 0o644)
    for parent, _, _ in os.walk(directory, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
    for path in _files(directory):
        if path.endswith(".dist-info/RECORD"):
            _correct_record(directory, os.path.join(directory, path))


def _correct_record(directory: str, record: str) -> None:
    with open(record, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if os.path.exists(os.path.join(directory, row[0]))]
    with open(record, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _files(directory: str) -> Iterator[str]:
    for parent, names, files in os.walk(directory):
        names.sort()
        for name in sorted(files):
            yield os.path.relpath(os.path.join(parent, name), directory)


def copy(source: str, destination: str) -> None:
    """Copy installed packages into the new root."""
    shutil.copytree(source, destination, dirs_exist_ok=True)
