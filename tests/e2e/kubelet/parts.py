"""Debian's packages, a kubelet and a containerd built from their Go modules, and the project's image.

Each function returns the path of its part and makes the part first if the cache does not have it. It raises
MissingError if this machine cannot have the part, and AssertionError if the build fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.e2e.common import cache, golang
from tests.e2e.common.report import say
from tests.e2e.kubelet.processes import run

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
KUBERNETES: Final = PROJECT / "tests" / "e2e" / "kubernetes"
NEWEST: Final = PROJECT / "tests" / "e2e" / "kubernetes-newest"
"""The module of the newest Kubernetes, for what older versions cannot do, and for upgrades."""
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
SUITE: Final = "bookworm"
"""The release of Debian in the image's base: its Python has the version that the Dockerfile requires."""

PACKAGES: Final = (
    *("containerd", "runc", "iproute2", "busybox-static", "containernetworking-plugins"),
    *("buildah", "debootstrap"),
)
"""The packages that a node needs, and the packages that build the image."""

PLUGIN_IMAGE: Final = "localhost/aosp-device-plugin:0.1.0"
BASE_IMAGE: Final = "localhost/python-base:3.11"
_BUILDAH: Final = ("buildah", "--storage-driver", "vfs")


def kubernetes(module: Path = KUBERNETES) -> Path:
    """Return the directory with etcd, the control plane, the kubelet and kubectl: one program, and links to it."""
    version = _version(module, "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    path = "k8s.io/component-base/version"
    link = f"-X {path}.gitVersion={version} -X {path}.gitMajor={major} -X {path}.gitMinor={minor}"
    directory = golang.build("cluster", module, "./cluster", link=link, sources=[KUBERNETES / "cluster"])
    for name in PROGRAMS:
        with contextlib.suppress(FileExistsError):
            (directory / name).symlink_to("cluster")
    return directory


def kubelet() -> Path:
    """Return the kubelet's binary."""
    return kubernetes() / "kubelet"


def dra_driver() -> Path:
    """Return the binary of upstream's DRA driver for tests."""
    return golang.build("dra-driver", KUBERNETES, "./dra-driver", sources=[KUBERNETES / "dra-driver"]) / "dra-driver"


def containerd() -> Path:
    """Return the directory of a containerd that supports CDI, with its shim for runc and its ctr."""
    path = "github.com/containerd/containerd/v2"
    module = HERE / "containerd"
    # These snapshotters require C libraries or programs, and no item uses them.
    tags = ("no_btrfs", "no_zfs", "no_devmapper")
    link = f"-X {path}/version.Version={_version(module, path)}"
    return golang.build("containerd", module, "tool", link=link, tags=tags)


def _version(module: Path, path: str) -> str:
    found = re.search(rf"{re.escape(path)} (v\S+)", (module / "go.mod").read_text())
    assert found is not None, f"go.mod does not name {path}"
    return found[1]


def plugin_image() -> Path:
    """Return an archive of the image that the project's Dockerfile builds."""
    base = _base()
    names = ("Dockerfile", ".dockerignore", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
    sources = [PROJECT / name for name in (*names, "deploy/build-requirements.txt", "aosp_plugin")]
    name = f"image-{cache.key([*sources, base.name])}"
    image = cache.cached(name, lambda directory: _build_image(base / "root.tar", directory)) / "image.tar"
    cache.evict("image-", keep=3)
    return image


def _base() -> Path:
    """Return the directory of root.tar, the base of the image: Debian's Python from debootstrap."""
    return cache.cached(f"base-{SUITE}", _build_base)


def _build_base(directory: Path) -> None:
    say(f"# debootstrap of {SUITE} for the base of the image: takes minutes, once")
    root = directory / "root"
    packages = "python3,python3-pip,ca-certificates"
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root), seconds=1800)
    shutil.rmtree(root / "var/cache/apt")
    with tarfile.open(directory / "root.tar", "w") as archive:
        archive.add(root, ".")
    shutil.rmtree(root)


def _build_image(base: Path, directory: Path) -> None:
    say("# building the plugin's image from the Dockerfile: takes minutes, once for each state of the code")
    store = ("--root", str(directory / "store"), "--runroot", str(directory / "run"))
    buildah = (*_BUILDAH, *store)
    try:
        container = run(*buildah, "from", "scratch").strip().splitlines()[-1]
        run(*buildah, "add", "--quiet", container, str(base), "/", seconds=600)
        run(*buildah, "commit", "--quiet", "--rm", container, BASE_IMAGE, seconds=600)
        context = ("--build-arg", f"BASE={BASE_IMAGE}", "--pull-never", *_pip_settings(directory))
        tag = ("--isolation", "chroot", "--tag", PLUGIN_IMAGE, "--squash")
        run(*buildah, "build", *tag, *context, str(PROJECT), seconds=1800)
        archive = directory / "image.tar"
        run(*buildah, "push", "--quiet", PLUGIN_IMAGE, f"docker-archive:{archive}:{PLUGIN_IMAGE}", seconds=600)
    finally:
        shutil.rmtree(directory / "store", ignore_errors=True)
        shutil.rmtree(directory / "run", ignore_errors=True)


def _pip_settings(directory: Path) -> list[str]:
    """Return arguments that mount this machine's pip settings into the build; the image does not contain them."""
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
