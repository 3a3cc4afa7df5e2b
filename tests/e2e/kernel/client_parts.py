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
from tests.e2e.kernel.architectures import AMD64
from tests.e2e.kernel.parts import HERE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.e2e.kernel.architectures import Architecture

SOURCES: Final = HERE / "clients"
_TOOLS: Final = "rsbinder-tools@0.12.0"
_SETTINGS: Final = ("RUSTFLAGS=-C target-feature=+crt-static", "CARGO_PROFILE_RELEASE_OPT_LEVEL=1")
"""Static programs, in half the time that full optimization takes."""

_GBINDER: Final = "libgbinder-tools"
_SUITE: Final = "sid"
"""The only suite of Debian that has the package. It moves: the part records the versions that it got."""
_PROGRAMS: Final = ("binder-list", "binder-call")

VERSIONS: Final = "versions"
"""The file of a part that lists what it was made from."""


def rsbinder(architecture: Architecture = AMD64) -> Path:
    """Return rsb_hub and rsb_service, and the service and client of ``clients``, static."""
    sources = [SOURCES / name for name in ("Cargo.toml", "Cargo.lock", "src")]
    digest = key([_TOOLS, architecture.rust, *_SETTINGS, *sources])
    return cached(f"rsbinder-{digest}", lambda directory: _build_rsbinder(architecture, directory))


def _build_rsbinder(architecture: Architecture, directory: Path) -> None:
    if not shutil.which("cargo"):
        raise MissingError(f"requires cargo, to build {_TOOLS}")
    settings = list(_SETTINGS)
    if not architecture.native:
        command("rustup", "target", "add", architecture.rust)
        variable = architecture.rust.upper().replace("-", "_")
        settings.append(f"CARGO_TARGET_{variable}_LINKER={architecture.compiler}gcc")
    say(f"# cargo install {_TOOLS}, and building tests/e2e/kernel/clients: takes minutes, once")
    target = ("--target", architecture.rust, "--target-dir", str(directory / "target"), "--locked", "--quiet")
    programs = ("--bin", "rsb_hub", "--bin", "rsb_service")
    install = ("cargo", "install", _TOOLS, *programs, "--root", str(directory), "--no-track")
    command("env", *settings, *install, *target, seconds=1800)
    # Cargo writes beside the manifest, and the checkout may be read-only.
    source = directory / "source"
    shutil.copytree(SOURCES, source)
    command("cargo", "fetch", "--locked", directory=source)
    command("env", *settings, "cargo", "build", "--release", *target, directory=source, seconds=1800, error=BrokenError)
    for name in ("tenant_service", "tenant_client"):
        shutil.move(directory / "target" / architecture.rust / "release" / name, directory / "bin" / name)
    (directory / VERSIONS).write_text(_TOOLS)
    for name in (".crates.toml", ".crates2.json"):
        (directory / name).unlink(missing_ok=True)
    shutil.rmtree(source)
    shutil.rmtree(directory / "target")


def gbinder(architecture: Architecture = AMD64) -> Path:
    """Return binder-list and binder-call with the loader and the libraries that they need."""
    digest = key([_GBINDER, _SUITE, *_PROGRAMS, architecture.debian])
    return cached(f"gbinder-{digest}", lambda directory: _build_gbinder(architecture, directory))


def _build_gbinder(architecture: Architecture, directory: Path) -> None:
    say(f"# downloading {_GBINDER} of Debian {_SUITE} and its libraries")
    apt, whole = directory / "apt", directory / "whole"
    packages = Suite(_SUITE, apt, architecture=architecture.debian).download_all(_GBINDER)
    suites.unpack(packages, whole)
    copy(architecture, whole, [whole / "usr/bin" / name for name in _PROGRAMS], directory)
    (directory / VERSIONS).write_text("\n".join(suites.versions(packages)))
    shutil.rmtree(apt)
    shutil.rmtree(whole)


def copy(
    architecture: Architecture, root: Path, programs: Sequence[Path], target: Path, directory: str = "bin"
) -> None:
    """Copy programs into a directory of the root of a container, with the loader and the libraries of a file tree."""
    files = {
        architecture.loader: root / "usr" / architecture.loader,
        **{f"{directory}/{program.name}": program for program in programs},
        **_libraries(architecture, root, programs),
    }
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)


def _libraries(architecture: Architecture, root: Path, programs: Sequence[Path]) -> dict[str, Path]:
    """Return the libraries that programs load, with their paths in the container, from the headers of the files."""
    found: dict[str, Path] = {}
    todo = [*programs]
    while todo:
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", command("readelf", "--dynamic", str(todo.pop()), error=BrokenError))
        paths = [f"{architecture.libraries}/{name}" for name in names]
        # The loader, which is among the names, is not in this directory in each suite.
        new = {path: root / path for path in paths if path not in found and (root / path).exists()}
        found |= new
        todo += new.values()
    return found
