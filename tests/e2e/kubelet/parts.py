"""The real parts: Debian's packages, a kubelet and a containerd built from their Go modules, and the project's image.

Each part is a function that returns where it is, and makes it first if it is not there. :class:`MissingError` means
that this machine can't have it; a command that fails in a build is an AssertionError.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common import cache
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    sources = [HERE / name for name in ("go.mod", "go.sum", "main.go")]
    told = "k8s.io/component-base/version.gitVersion"
    return _built("kubelet", sources, "k8s.io/kubernetes", told, ".") / "kubelet"


def containerd() -> Path:
    """Return the directory of a containerd that knows CDI, with its shim for runc and its ctr."""
    sources = [HERE / "containerd" / name for name in ("go.mod", "go.sum")]
    module = "github.com/containerd/containerd/v2"
    # These snapshotters need C's libraries, or programs, and nobody uses them here.
    tags = ("no_btrfs", "no_zfs", "no_devmapper")
    return _built("containerd", sources, module, f"{module}/version.Version", "tool", tags)


def _built(what: str, sources: list[Path], module: str, told: str, target: str, tags: Sequence[str] = ()) -> Path:
    """Return the directory of what ``go build`` makes of ``sources``, of which the first one is the go.mod.

    That requires ``module``, in the version that the variable ``told`` gets.
    """
    if not shutil.which("go"):
        raise MissingError(f"no Go to build the {what} with: install Go 1.24 or newer")
    found = re.search(rf"{re.escape(module)} (v\S+)", sources[0].read_text())
    assert found is not None, f"go.mod does not say which {what}"
    flags = ("-tags", ",".join(tags), "-ldflags", f"-s -w -X {told}={found[1]}")

    def build(directory: Path) -> None:
        say(f"# building {what} {found[1]}: minutes, once")
        started = time.monotonic()
        _build(sources, directory, *flags, target)
        say(f"# {what} took {time.monotonic() - started:.0f} s")

    return cache.kept(f"{what}-{cache.key([*sources, *tags, run('go', 'version')])}", build)


def _build(sources: list[Path], directory: Path, *arguments: str) -> None:
    module = directory / "module"
    module.mkdir()
    for source in sources:
        shutil.copy(source, module)
    go = ("env", "GOFLAGS=-mod=mod -buildvcs=false", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "go", "build", "-trimpath")
    run(*go, "-o", f"{directory}/", *arguments, seconds=3600, cwd=module)
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
