"""A base image for the project's Dockerfile out of Debian's packages, for machines that cannot pull one.

``python -m tests.e2e.common.base_image`` prints its name, for ``make image BASE=NAME``.
"""

from pathlib import Path
from typing import Final

from tests.e2e.common import images, packages, suites
from tests.e2e.common.cache import cached, key
from tests.e2e.common.report import say

_SUITE: Final = "trixie"
"""The release that the Dockerfile's base has, and the packages of the image."""
_PACKAGES: Final = ("ca-certificates", "python3-pip")


def name() -> str:
    """Return the name by which buildah finds the image, which is made first if the cache does not have it."""
    return f"docker-archive:{cached(f'base-{_SUITE}-{key([Path(__file__)])}', _build)}/base.tar"


def _build(directory: Path) -> None:
    packages.install(["mmdebstrap"])
    root = directory / "root.tar"
    sources = [f"deb {suites.OPTIONS} {archive} main" for archive in suites.archives(_SUITE)]
    options = ("--quiet", "--variant=apt", f"--include={','.join(_PACKAGES)}")
    packages.command("mmdebstrap", *options, _SUITE, str(root), *sources, seconds=1800)
    images.write(directory / "base.tar", root.read_bytes())
    root.unlink()


if __name__ == "__main__":
    say(name())
