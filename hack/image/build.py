"""Builds the image of the Dockerfile for one architecture with buildah, which needs no daemon: an archive and an SBOM.

An archive is an OCI image layout in a tar file, with Docker's manifest.json for ``docker load``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin import __version__
from hack.files import compact_json, tar

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "localhost/aosp-device-plugin"
"""The default name, without a registry: nodes import images of this name, and never pull them."""
ARCHITECTURES: Final = ("amd64", "arm64")
_PROJECT: Final = Path(__file__).resolve().parents[2]
_MIRROR: Final = {
    "pip": os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf"),
    "certificates": "/etc/ssl/certs/ca-certificates.crt",
}
"""Files of this machine that the build stage uses, where they exist; the image does not contain them."""


class BuildError(Exception):
    """The image cannot be built, for a reason in the text."""


class Settings(NamedTuple):
    """The inputs of an image beside the checkout's files."""

    name: str = NAME
    base: str = ""
    """A base image; empty for the Dockerfile's."""
    revision: str = "unknown"
    epoch: int = 0
    """The time of all files, in seconds since 1970."""


class Built(NamedTuple):
    """An archive that was written."""

    path: Path
    digest: str
    """The digest of the manifest, by which a registry knows the image."""


def own_arch() -> str:
    """Return the architecture of this machine, with its name in images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def build(arch: str, directory: Path, settings: Settings) -> Built:
    """Build the image of one architecture, and write its archive and its SBOM. Raises BuildError."""
    from hack.image import sbom  # noqa: PLC0415 - guests of tests/e2e have only the plugin's own dependencies

    directory.mkdir(parents=True, exist_ok=True)
    name = f"{settings.name}:{__version__}"
    stem = f"aosp-device-plugin-{__version__}-linux-{arch}"
    with tempfile.TemporaryDirectory(prefix="aosp-image-", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary)
        # A store of its own, and no namespaces, so that it works inside a container too.
        buildah = ("buildah", f"--root={work / 'store'}", f"--runroot={work / 'run'}", "--storage-driver=vfs")
        _run(*buildah, "build", *_options(arch, settings), f"--output={work / 'root'}", f"--tag={name}", str(_PROJECT))
        _run(*buildah, "push", "--quiet", name, f"oci:{work / 'layout'}:{__version__}")
        files = _layout(work / "layout", name, arch)
        built = Built(directory / f"{stem}.tar", json.loads(files["index.json"])["manifests"][0]["digest"])
        built.path.write_bytes(tar(files, settings.epoch))
        document = sbom.document(work / "root", arch, built.digest, settings.epoch)
    (directory / f"{stem}.sbom.json").write_text(document, encoding="utf-8")
    return built


def _options(arch: str, settings: Settings) -> Iterator[str]:
    # Nothing that depends on buildah's version or on the time.
    yield from ("--isolation=chroot", f"--timestamp={settings.epoch}", "--identity-label=false", "--omit-history")
    # Versions before 1.30 do not know the platform that builds.
    yield from (f"--platform=linux/{arch}", f"--build-arg=BUILDPLATFORM=linux/{own_arch()}")
    arguments = {"VERSION": __version__, "REVISION": settings.revision, "BASE": settings.base}
    yield from (f"--build-arg={name}={value}" for name, value in arguments.items() if value)
    yield from (f"--secret=id={name},src={path}" for name, path in _MIRROR.items() if os.path.isfile(path))


def _layout(directory: Path, name: str, arch: str) -> dict[str, bytes]:
    """Return the files of an OCI image layout with one image, to which containerd and Docker give a full name."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {str(path.relative_to(directory)): path.read_bytes() for path in paths}
    index = json.loads(files["index.json"])
    (entry,) = index["manifests"]
    entry["annotations"]["io.containerd.image.name"] = name
    entry["platform"] = {"architecture": arch, "os": "linux"}
    manifest = json.loads(files[_blob(entry)])
    docker = {"Config": _blob(manifest["config"]), "RepoTags": [name], "Layers": [*map(_blob, manifest["layers"])]}
    return files | {"index.json": compact_json(index), "manifest.json": compact_json([docker])}


def _blob(descriptor: dict[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _run(*command: str) -> None:
    """Run a tool. Raises BuildError with the end of its output if it fails."""
    try:
        subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        output = "\n".join(error.stdout.strip().splitlines()[-30:])
        raise BuildError(f"{command[0]} failed with exit code {error.returncode}:\n{output}") from error
