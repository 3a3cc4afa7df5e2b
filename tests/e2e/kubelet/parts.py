"""Debian's packages, a kubelet and a containerd built from their Go modules, and the project's image.

Each function returns the path of its part and makes the part first if the cache does not have it. It raises
MissingError if this machine cannot have the part, and AssertionError if the build fails.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aosp_plugin import __version__
from hack.image import build as image
from tests.e2e.common import base_image, cache, golang
from tests.e2e.common.report import say
from tests.e2e.deploy.parts import KUBERNETES, PROJECT
from tests.e2e.kubelet import versions

HERE: Final = Path(__file__).resolve().parent
NEWEST: Final = PROJECT / "tests" / "e2e" / "kubernetes-newest"
"""The module of the newest Kubernetes, for what older versions cannot do, and for upgrades."""
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
PACKAGES: Final = (
    *("containerd", "runc", "iproute2", "busybox-static", "containernetworking-plugins"),
    "buildah",
)
"""The packages that a node needs, and the one that builds the image."""

PLUGIN_IMAGE: Final = f"{image.NAME}:{__version__}"


@dataclass
class Parts:
    """The parts of a run of this suite, as the sandbox gets them."""

    kubelet: str = ""
    image: str = ""
    """The archive of the plugin's image."""
    runtime: str = ""
    """The combination of runtimes that runs all pods, instead of Debian's containerd and the one with CDI."""
    programs: str = ""
    """The directory of the programs of the combination's container runtime, or of the containerd with CDI."""
    oci_runtime: str = "runc"
    missing: dict[str, str] = field(default_factory=dict)
    """Why this machine does not have a part, by the name of the field."""
    work: Path = Path()
    """The directory for the run's files."""
    cgroups: str = ""
    """The name of its directory of cgroups."""
    tails: Callable[[], Iterable[tuple[str, str]]] = tuple
    """Returns name and end of the log of each process that runs."""


def kubernetes(module: Path = KUBERNETES, *, target: str = "") -> Path:
    """Return the directory with etcd, the control plane, the kubelet and kubectl: one program, and links to it.

    For another architecture, ``target``, the directory has what a node needs: the kubelet.
    """
    link = golang.kubernetes_version(golang.pinned(module, "k8s.io/kubernetes"))
    if target:
        return golang.build("kubelet", module, "k8s.io/kubernetes/cmd/kubelet", link=link, target=target)
    directory = golang.build("cluster", module, "./cluster", link=link, sources=[KUBERNETES / "cluster"])
    for name in PROGRAMS:
        with contextlib.suppress(FileExistsError):
            (directory / name).symlink_to("cluster")
    return directory


def kubelet(version: str = "") -> Path:
    """Return the kubelet's binary; ``version`` is a key of ``versions.VERSIONS``."""
    return versions.build(version) if version else kubernetes() / "kubelet"


def containerd(target: str = "") -> Path:
    """Return the directory of a containerd that supports CDI, with its shim for runc and its ctr.

    ``target`` is the architecture, by default this machine's.
    """
    path = "github.com/containerd/containerd/v2"
    module = HERE / "containerd"
    # These snapshotters require C libraries or programs, and no test uses them.
    tags = ("no_btrfs", "no_zfs", "no_devmapper")
    link = f"-X {path}/version.Version={golang.pinned(module, path)}"
    return golang.build("containerd", module, "tool", link=link, tags=tags, target=target)


def plugin_image(target: str = "") -> Path:
    """Return an archive of the image that the project's Dockerfile builds.

    ``target`` is the architecture, by default this machine's.
    """
    names = ("Dockerfile", ".dockerignore", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
    sources = [PROJECT / name for name in (*names, "deploy/build-requirements.txt", "aosp_plugin", "hack/image")]
    name = "-".join(filter(None, ("image", target, cache.key(sources))))
    path = cache.cached(name, lambda directory: _build_image(target or image.own_arch(), directory)) / "image.tar"
    cache.evict("image-", keep=10)  # other checkouts on this machine may be using theirs
    return path


def _build_image(arch: str, directory: Path) -> None:
    say(f"# building the plugin's image for {arch} from the Dockerfile: takes minutes, once for each state of the code")
    settings = image.Settings(base=base_image.name())
    try:
        built = image.build(arch, directory, settings)
    except image.BuildError as error:
        raise AssertionError(str(error)) from error
    built.path.rename(directory / "image.tar")
