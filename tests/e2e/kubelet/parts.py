"""The real parts: Debian's packages, a kubelet built from its Go module, and the project's image.

Each part is a function that returns where it is, and makes it first if it is not there. :class:`MissingError` means
that this machine can't have it; a command that fails in a build is an AssertionError.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.e2e.common import cache
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.kubelet.processes import run

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
SUITE: Final = "bookworm"
"""The Debian that the image's base is made of: its Python is the Dockerfile's."""

PACKAGES: Final = (
    *("containerd", "runc", "iproute2", "busybox-static", "containernetworking-plugins"),
    *("buildah", "debootstrap"),
)
"""What a node is made of, and what builds the image."""

PLUGIN_IMAGE: Final = "localhost/aosp-device-plugin:0.1.0"
BASE_IMAGE: Final = "localhost/python-base:3.11"
_BUILDAH: Final = ("buildah", "--storage-driver", "vfs")


def kubelet() -> Path:
    """Return the kubelet's binary."""
    if not shutil.which("go"):
        raise MissingError("no Go to build the kubelet with: install Go 1.24 or newer")
    sources = [HERE / name for name in ("go.mod", "go.sum", "main.go")]
    found = re.search(r"k8s\.io/kubernetes (v\S+)", sources[0].read_text())
    assert found is not None, "go.mod does not say which kubelet"
    name = f"kubelet-{cache.key([*sources, run('go', 'version')])}"
    return cache.kept(name, lambda directory: _build_kubelet(sources, found[1], directory)) / "kubelet"


def _build_kubelet(sources: list[Path], version: str, directory: Path) -> None:
    say(f"# building kubelet {version}: minutes, once")
    module = directory / "module"
    module.mkdir()
    for source in sources:
        shutil.copy(source, module)
    go = ("env", "GOFLAGS=-mod=mod -buildvcs=false", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "go", "build", "-trimpath")
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={version}"
    run(*go, "-ldflags", flags, "-o", str(directory / "kubelet"), ".", seconds=3600, cwd=module)
    shutil.rmtree(module)


def plugin_image() -> Path:
    """Return the image that the project's Dockerfile makes, as an archive."""
    base = _base()
    made_of = ("Dockerfile", ".dockerignore", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
    sources = [PROJECT / name for name in (*made_of, "deploy/build-requirements.txt", "aosp_plugin")]
    name = f"image-{cache.key([*sources, base.name])}"
    image = cache.kept(name, lambda directory: _build_image(base / "root.tar", directory)) / "image.tar"
    cache.forget("image-", keep=3)
    return image


def _base() -> Path:
    """Return the base image's files: Debian's Python, made by debootstrap, in the place of the registry's image."""
    return cache.kept(f"base-{SUITE}", _build_base)


def _build_base(directory: Path) -> None:
    say(f"# debootstrap of {SUITE}, the base of the image: a minute or two, once")
    root = directory / "root"
    packages = "python3,python3-pip,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root), seconds=1800)
    shutil.rmtree(root / "var/cache/apt")
    with tarfile.open(directory / "root.tar", "w") as archive:
        archive.add(root, ".")
    shutil.rmtree(root)


def _build_image(base: Path, directory: Path) -> None:
    say("# building the plugin's image from the Dockerfile: minutes, once for each state of the code")
    store = ("--root", str(directory / "store"), "--runroot", str(directory / "run"))
    buildah = (*_BUILDAH, *store)
    try:
        made = run(*buildah, "from", "scratch").strip().splitlines()[-1]
        run(*buildah, "add", "--quiet", made, str(base), "/", seconds=600)
        run(*buildah, "commit", "--quiet", "--rm", made, BASE_IMAGE, seconds=600)
        context = ("--build-arg", f"BASE={BASE_IMAGE}", "--pull-never", *_pip_settings(directory))
        tag = ("--isolation", "chroot", "--tag", PLUGIN_IMAGE, "--squash")
        run(*buildah, "build", *tag, *context, str(PROJECT), seconds=1800)
        archive = directory / "image.tar"
        run(*buildah, "push", "--quiet", PLUGIN_IMAGE, f"docker-archive:{archive}:{PLUGIN_IMAGE}", seconds=600)
    finally:
        shutil.rmtree(directory / "store", ignore_errors=True)
        shutil.rmtree(directory / "run", ignore_errors=True)


def _pip_settings(directory: Path) -> list[str]:
    """Return what lets pip in the build use this machine's settings: they are mounted there, and not in the image."""
    listing = run(sys.executable, "-m", "pip", "config", "list")
    settings: dict[str, str] = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listing, re.MULTILINE))
    file = directory / "run-pip.conf"
    file.write_text("".join(["[global]\n", *(f"{name} = {value}\n" for name, value in settings.items())]))
    volumes = [f"{file}:/etc/pip.conf:ro"]
    for value in settings.values():
        if os.path.isabs(value) and os.path.exists(value):
            real = os.path.realpath(value)
            volumes.append(f"{real}:{value}:ro")
    return [word for volume in volumes for word in ("--volume", volume)]
