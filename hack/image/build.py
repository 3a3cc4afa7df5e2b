"""Builds the image of one architecture: an archive and an SBOM."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin import __version__
from hack.image import archive, builders, debian_base

if TYPE_CHECKING:
    from hack.image.archive import Written

NAME: Final = "localhost/aosp-device-plugin"
"""Without a registry: images of this name are imported on the nodes, and never pulled."""
DEBIAN: Final = "debian"
"""Instead of a base image's name: a base made from Debian's packages."""


class Settings(NamedTuple):
    """What an image depends on beside the checkout's files."""

    name: str = NAME
    base: str = ""
    """A base image; empty for the Dockerfile's."""
    build_base: str = ""
    """The base image of the stage that runs; empty for the same as ``base``."""
    revision: str = "unknown"
    epoch: int = 0
    """The time in the archive, in seconds since 1970."""


def build(arch: str, directory: Path, settings: Settings) -> Written:
    """Build the image of one architecture, and write its archive and its SBOM."""
    from hack.image import sbom  # noqa: PLC0415 - guests of tests/e2e have only the plugin's own dependencies

    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"aosp-device-plugin-{__version__}-linux-{arch}"
    with tempfile.TemporaryDirectory(prefix="aosp-image-") as temporary:
        built = Path(temporary, "image.tar")
        builders.build(_order(arch, settings), built)
        image = archive.read(built)
    path = stem.with_name(f"{stem.name}.tar")
    written = archive.write(path, image, f"{settings.name}:{__version__}", settings.epoch)
    stem.with_name(f"{stem.name}.sbom.json").write_text(sbom.document(image, written, settings.epoch), encoding="utf-8")
    return written


def _order(arch: str, settings: Settings) -> builders.Order:
    arguments = {"VERSION": __version__, "REVISION": settings.revision}
    if settings.base != DEBIAN:
        arguments |= (
            {"BASE": settings.base, "BUILD_BASE": settings.build_base or settings.base} if settings.base else {}
        )
        return builders.Order(arch, arguments, {})
    own = builders.own_arch()
    build_base, base = (f"localhost/aosp-device-plugin-base:{name}" for name in (own, arch))
    bases = {build_base: (own, debian_base.archive(own, debian_base.BUILD))}
    if arch != own:
        bases[base] = (arch, debian_base.archive(arch, debian_base.TARGET))
    return builders.Order(arch, arguments | {"BASE": base, "BUILD_BASE": build_base}, bases)
