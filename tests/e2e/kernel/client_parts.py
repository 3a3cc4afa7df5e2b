"""Binder software of others for the boot ``clients``: rsbinder from crates.io, and libgbinder's tools from Debian sid.

Each function returns the directory of its part, to be copied over the root of a container, and builds the part first if
the cache does not have it. It raises MissingError if this machine cannot have the part, and BrokenError if the build of
this project's own programs fails.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from tests.e2e.common import suites
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import BrokenError, MissingError, command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel.parts import HERE

if TYPE_CHECKING:
    from pathlib import Path

SOURCES: Final = HERE / "clients"
_TOOLS: Final = "rsbinder-tools@0.12.0"
_TARGET: Final = "x86_64-unknown-linux-gnu"
_SETTINGS: Final = ("RUSTFLAGS=-C target-feature=+crt-static", "CARGO_PROFILE_RELEASE_OPT_LEVEL=1")
"""Static programs, in half the time that full optimization takes."""

_GBINDER: Final = "libgbinder-tools"
_SUITE: Final = "sid"
"""The only suite of Debian that has the package. It moves: the part records the versions that it got."""
_PROGRAMS: Final = ("binder-list", "binder-call")
_LOADER: Final = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"

VERSIONS: Final = "versions"
"""The file of a part that lists what it was made from."""


def rsbinder() -> Path:
    """Return rsb_hub and rsb_service, and the service and client of ``clients``, static."""
    sources = [SOURCES / name for name in ("Cargo.toml", "Cargo.lock", "src")]
    return cached(f"rsbinder-{key([_TOOLS, _TARGET, *_SETTINGS, *sources])}", _build_rsbinder)


def _build_rsbinder(directory: Path) -> None:
    if not shutil.which("cargo"):
        raise MissingError(f"requires cargo, to build {_TOOLS}")
    say(f"# cargo install {_TOOLS}, and building tests/e2e/kernel/clients: takes minutes, once")
    target = ("--target", _TARGET, "--target-dir", str(directory / "target"), "--locked", "--quiet")
    programs = ("--bin", "rsb_hub", "--bin", "rsb_service")
    install = ("cargo", "install", _TOOLS, *programs, "--root", str(directory), "--no-track")
    command("env", *_SETTINGS, *install, *target, seconds=1800)
    # Cargo writes beside the manifest, and the checkout may be read-only.
    source = directory / "source"
    shutil.copytree(SOURCES, source)
    command("cargo", "fetch", "--locked", directory=source)
    command(
        "env", *_SETTINGS, "cargo", "build", "--release", *target, directory=source, seconds=1800, error=BrokenError
    )
    for name in ("tenant_service", "tenant_client"):
        shutil.move(directory / "target" / _TARGET / "release" / name, directory / "bin" / name)
    (directory / VERSIONS).write_text(_TOOLS)
    for name in (".crates.toml", ".crates2.json"):
        (directory / name).unlink(missing_ok=True)
    shutil.rmtree(source)
    shutil.rmtree(directory / "target")


def gbinder() -> Path:
    """Return binder-list and binder-call with the loader and the libraries that they need."""
    return cached(f"gbinder-{key([_GBINDER, _SUITE, *_PROGRAMS])}", _build_gbinder)


def _build_gbinder(directory: Path) -> None:
    say(f"# downloading {_GBINDER} of Debian {_SUITE} and its libraries")
    apt, whole = directory / "apt", directory / "whole"
    packages = Suite(_SUITE, apt).download_all(_GBINDER)
    suites.unpack(packages, whole)
    for name in ("bin", "lib64", _LIBRARIES):
        (directory / name).mkdir(parents=True)
    shutil.copy(whole / _LOADER, directory / "lib64")
    for name in _PROGRAMS:
        shutil.copy(whole / "usr/bin" / name, directory / "bin")
        for library in _libraries(whole, name):
            shutil.copy(library, directory / _LIBRARIES)
    (directory / VERSIONS).write_text("\n".join(suites.versions(packages)))
    shutil.rmtree(apt)
    shutil.rmtree(whole)


def _libraries(root: Path, program: str) -> set[str]:
    """Return the files of the libraries that a program loads."""
    listed = command(
        *(str(root / _LOADER), "--library-path", str(root / _LIBRARIES), "--list", str(root / "usr/bin" / program)),
        error=BrokenError,
    )
    return {path for path in re.findall(r"=> (\S+)", listed) if path.startswith(str(root / _LIBRARIES))}
