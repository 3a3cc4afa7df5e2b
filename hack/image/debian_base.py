"""Makes a base image of the Dockerfile from Debian's packages, for machines that cannot pull one.

The packages are downloaded with debootstrap, which verifies Debian's signature, and only unpacked: nothing of the base
runs, so that one for arm64 can be made on amd64. Its Python is Debian's.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Final

from hack.image.builders import run
from hack.image.errors import BuildError
from tests.e2e.common import cache

SUITE: Final = "trixie"
"""The release that the Dockerfile's base has, so that the minor version of Python is the same."""
TARGET: Final = ("python3",)
"""The packages from which the image takes files, beside those that every Debian has."""
BUILD: Final = (*TARGET, "python3-pip", "ca-certificates")
"""Those that the build stage runs too."""
_DPKG: Final = "var/lib/dpkg"
_UNNEEDED: Final = tuple(f"usr/share/{name}" for name in ("locale", "man", "info", "i18n", "zoneinfo", "perl5"))
_CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"


def archive(arch: str, packages: tuple[str, ...]) -> Path:
    """Return a tar file with the root directory of a base image, from the cache if it is there."""
    name = f"base-{SUITE}-{arch}-{cache.key([Path(__file__), *packages])}"
    return cache.cached(name, lambda directory: make(arch, packages, directory / "root.tar")) / "root.tar"


def make(arch: str, packages: tuple[str, ...], archive: Path) -> None:
    """Write the root directory of a base image to a tar file. Requires root and debootstrap."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise BuildError("a base from Debian's packages requires root, and the package debootstrap")
    root = archive.parent / f"root-{arch}"
    try:
        options = ("--foreign", "--variant=minbase", f"--arch={arch}", f"--include={','.join(packages)}")
        run("debootstrap", *options, SUITE, str(root))
        _unpack(root)
        _configure(root)
        with tarfile.open(archive, "w") as tar:
            tar.add(root, ".")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _unpack(root: Path) -> None:
    """Unpack all packages, and record them in dpkg's database as dpkg does."""
    status = []
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        run("dpkg-deb", "--extract", str(package), str(root))
        control = run("dpkg-deb", "--field", str(package)).rstrip()
        name, arch, multi = (_field(control, field) for field in ("Package", "Architecture", "Multi-Arch"))
        info = root / _DPKG / "info" / (f"{name}:{arch}" if multi == "same" else name)
        names = run("dpkg-deb", "--contents", str(package)).splitlines()
        info.with_name(f"{info.name}.list").write_text("".join(f"{path_of(line)}\n" for line in names))
        scripts = root / "control"
        run("dpkg-deb", "--control", str(package), str(scripts))
        if (scripts / "md5sums").exists():
            shutil.copy(scripts / "md5sums", info.with_name(f"{info.name}.md5sums"))
        shutil.rmtree(scripts)
        head, _, rest = control.partition("\n")
        status.append(f"{head}\nStatus: install ok unpacked\n{rest}\n")
    (root / _DPKG / "status").write_text("\n".join(status))
    for unneeded in ("debootstrap", "var/cache/apt", "var/lib/apt/lists", *_UNNEEDED):
        shutil.rmtree(root / unneeded, ignore_errors=True)


def _field(control: str, name: str) -> str:
    return next((line.partition(": ")[2] for line in control.splitlines() if line.startswith(f"{name}: ")), "")


def path_of(line: str) -> str:
    """Return the path in a line of ``dpkg-deb --contents``: -rw-r--r-- root/root 5 2026-01-01 10:00 ./usr/a -> b."""
    path = line.split(maxsplit=5)[5].partition(" -> ")[0].partition(" link to ")[0]
    return path.removeprefix(".").rstrip("/") or "/."


def _configure(root: Path) -> None:
    """Do what scripts of the packages would do, as far as the build stage needs it."""
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    if certificates:
        (root / _CERTIFICATES).parent.mkdir(parents=True, exist_ok=True)
        (root / _CERTIFICATES).write_text("".join(file.read_text() for file in certificates))
