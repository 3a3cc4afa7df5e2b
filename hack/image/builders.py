"""Runs buildah, which builds images without a daemon."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hack.image.assemble.packages import MACHINES
from hack.image.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROJECT: Final = Path(__file__).resolve().parents[2]
_LINES: Final = 30
"""The last lines of a failed tool's output that its error contains."""


class Order(NamedTuple):
    """What to build."""

    arch: str
    arguments: Mapping[str, str]
    """The Dockerfile's arguments."""
    bases: Mapping[str, tuple[str, Path]]
    """Base images that are not pulled: the architecture, and a tar file of the root directory, for each name."""


def own_arch() -> str:
    """Return the architecture of this machine, with its name in images."""
    return next((arch for arch, machine in MACHINES.items() if machine == platform.machine()), platform.machine())


def build(order: Order, archive: Path) -> None:
    """Build the image of the project's Dockerfile, and write it to an archive with Docker's manifest.json.

    buildah has a store of its own, and no namespaces, so that it works inside a container too.
    """
    if shutil.which("buildah") is None:
        raise BuildError("buildah is not installed")
    with tempfile.TemporaryDirectory(prefix="aosp-image-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        tag = f"localhost/aosp-device-plugin-build:{order.arch}"
        arguments = [*_options(order), *_secrets(directory), f"--platform=linux/{order.arch}", f"--tag={tag}"]
        # Versions before 1.30 do not know the platform that builds.
        arguments += [f"--build-arg=BUILDPLATFORM=linux/{own_arch()}", *(["--pull=never"] if order.bases else [])]
        buildah = ("buildah", f"--root={directory / 'store'}", f"--runroot={directory / 'run'}", "--storage-driver=vfs")
        for name, (arch, root) in order.bases.items():
            container = run(*buildah, "from", f"--arch={arch}", "scratch").strip().splitlines()[-1]
            run(*buildah, "add", "--quiet", container, str(root), "/")
            run(*buildah, "config", f"--arch={arch}", "--os=linux", container)
            run(*buildah, "commit", "--quiet", "--rm", container, name)
        run(*buildah, "build", "--isolation=chroot", *arguments, str(PROJECT))
        run(*buildah, "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")


def _options(order: Order) -> Iterator[str]:
    for name, value in order.arguments.items():
        yield f"--build-arg={name}={value}"


def _secrets(directory: Path) -> Iterator[str]:
    """Pass this machine's pip settings into the build: a mirror, certificates. The image does not contain them."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listing.stdout, re.MULTILINE))
    lines = [
        f"{name} = {value}\n" for name, value in found.items() if name in {"index-url", "extra-index-url", "timeout"}
    ]
    if os.path.isfile(found.get("cert", "")):
        lines.append("cert = /run/certificates.pem\n")
        yield f"--secret=id=certificates,src={os.path.realpath(found['cert'])}"
    if lines:
        file = directory / "pip.conf"
        file.write_text("[global]\n" + "".join(lines), encoding="utf-8")
        yield f"--secret=id=pip,src={file}"


def run(*command: str) -> str:
    """Run a tool, and return what it printed. Raises BuildError with the end of its output if it fails."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if result.returncode != 0:
        output = "\n".join(result.stdout.strip().splitlines()[-_LINES:])
        raise BuildError(f"{' '.join(command[:3])} ... failed with exit code {result.returncode}:\n{output}")
    return result.stdout
