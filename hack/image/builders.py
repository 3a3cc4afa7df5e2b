"""Runs the tool that builds images on this machine: docker with buildx, podman or buildah."""

from __future__ import annotations

import contextlib
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
    from collections.abc import Iterator, Mapping, Sequence

PROJECT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = ("docker", "podman", "buildah")
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


def choose(name: str = "auto") -> str:
    """Return the name of a builder that works here."""
    if name != "auto":
        if shutil.which(name) is None:
            raise BuildError(f"{name} is not installed")
        return name
    for candidate in NAMES:
        # A docker without a daemon or without buildx cannot build.
        if shutil.which(candidate) and (candidate != "docker" or _works("docker", "buildx", "inspect")):
            return candidate
    raise BuildError("no tool that builds images: install docker with buildx, podman or buildah")


def build(builder: str, order: Order, archive: Path) -> None:
    """Build the image of the project's Dockerfile, and write it to an archive with Docker's manifest.json."""
    with tempfile.TemporaryDirectory(prefix="aosp-image-") as temporary:
        directory = Path(temporary)
        tag = f"localhost/aosp-device-plugin-build:{order.arch}"
        arguments = [*_options(order), *_secrets(directory), f"--platform=linux/{order.arch}", f"--tag={tag}"]
        if builder == "docker":
            _docker(order, arguments, tag, archive)
        elif builder == "podman":
            _podman(order, arguments, tag, archive)
        else:
            _buildah(order, arguments, tag, archive, directory)


def _docker(order: Order, arguments: Sequence[str], tag: str, archive: Path) -> None:
    for name, (arch, root) in order.bases.items():
        run("docker", "import", f"--platform=linux/{arch}", str(root), name)
    run("docker", "buildx", "build", "--load", "--provenance=false", *arguments, str(PROJECT))
    run("docker", "save", f"--output={archive}", tag)
    run("docker", "rmi", tag, *order.bases)


def _podman(order: Order, arguments: Sequence[str], tag: str, archive: Path) -> None:
    for name, (arch, root) in order.bases.items():
        run("podman", "import", "--quiet", f"--arch={arch}", "--os=linux", str(root), name)
    run("podman", "build", *_for_buildah(order), *arguments, str(PROJECT))
    run("podman", "save", "--quiet", "--format=docker-archive", f"--output={archive}", tag)
    run("podman", "rmi", tag, *order.bases)


def _buildah(order: Order, arguments: Sequence[str], tag: str, archive: Path, directory: Path) -> None:
    """Use a store of its own, and no namespaces, so that it works inside a container too."""
    store = (f"--root={directory / 'store'}", f"--runroot={directory / 'run'}", "--storage-driver=vfs")
    buildah = ("buildah", *store)
    try:
        for name, (arch, root) in order.bases.items():
            container = run(*buildah, "from", f"--arch={arch}", "scratch").strip().splitlines()[-1]
            run(*buildah, "add", "--quiet", container, str(root), "/")
            run(*buildah, "config", f"--arch={arch}", "--os=linux", container)
            run(*buildah, "commit", "--quiet", "--rm", container, name)
        run(*buildah, "build", "--isolation=chroot", *_for_buildah(order), *arguments, str(PROJECT))
        run(*buildah, "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")
    finally:
        shutil.rmtree(directory / "store", ignore_errors=True)


def _for_buildah(order: Order) -> list[str]:
    """Return options that podman and buildah need; versions before 1.30 do not know the platform that builds."""
    return [f"--build-arg=BUILDPLATFORM=linux/{own_arch()}", *(["--pull=never"] if order.bases else [])]


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


def _works(*command: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    return False


def run(*command: str) -> str:
    """Run a tool, and return what it printed. Raises BuildError with the end of its output if it fails."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if result.returncode != 0:
        output = "\n".join(result.stdout.strip().splitlines()[-_LINES:])
        raise BuildError(f"{' '.join(command[:3])} ... failed with exit code {result.returncode}:\n{output}")
    return result.stdout
