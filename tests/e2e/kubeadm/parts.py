"""What a kubeadm node has besides the parts of a cluster: kubeadm's programs, images and the kernel's modules."""

import io
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.cluster import parts as cluster
from tests.e2e.common import golang, images, packages
from tests.e2e.common.cache import cached, key
from tests.e2e.common.processes import run
from tests.e2e.kernel import parts as kernel
from tests.e2e.kubelet import versions
from tests.e2e.kubelet.parts import PROGRAMS

OLD: Final = "1.36"
NEW: Final = "1.37"
_PACKAGES: Final = ("kmod", "ethtool", "iptables")
"""What the documents of kubeadm, and kube-proxy's image, require of Debian."""
_PAUSE: Final = "[ $# = 0 ] || exit 0; trap exit TERM; sleep 2147483647 & wait"
"""With an argument, the program prints its version and ends: kubeadm starts it so before an upgrade."""
_IPTABLES: Final = Path("/usr/sbin/xtables-nft-multi")
_EXTENSIONS: Final = Path("/usr/lib/x86_64-linux-gnu/xtables")


@dataclass(frozen=True)
class Parts:
    """The paths of the parts."""

    cluster: cluster.Parts
    kubeadm: dict[str, Path]
    """The directory of each version's programs."""
    coredns: Path
    modules: Path
    """The directory of all modules of the kernel, with the binder module, and of its configuration."""


def collect() -> Parts:
    """Return all parts; what the cache does not have is installed or built. Raises as the parts of a cluster do."""
    found = cluster.collect(newest=False, binder=True)
    if found.guest is None:
        raise packages.MissingError("there is no machine with a real binder driver")
    packages.install(_PACKAGES)
    programs = {version: versions.kubeadm(version) for version in (OLD, NEW)}
    for directory in programs.values():
        for name in PROGRAMS:
            if not (directory / name).is_symlink():
                (directory / name).symlink_to("cluster")
    coredns = golang.build("coredns", Path(__file__).parent / "coredns", ".") / "coredns"
    return Parts(found, programs, coredns, _modules(kernel.binderfs_module()))


def _modules(binder: Path) -> Path:
    """Return a directory like the host's, in which modprobe finds all modules of Debian's kernel."""
    release, version = kernel.debian_release()

    def build(directory: Path) -> None:
        packages.command("apt-get", "download", f"linux-image-{release}={version}", directory=directory, seconds=600)
        (archive,) = directory.glob("*.deb")
        packages.command("dpkg", "--extract", str(archive), str(directory))
        archive.unlink()
        (directory / f"lib/modules/{release}/updates").mkdir()
        shutil.copy(binder, directory / f"lib/modules/{release}/updates")
        packages.command("depmod", f"--basedir={directory}", release)

    return cached(f"modules-{release}-{key([version, binder])}", build)


def image_names(parts: Parts, version: str) -> list[str]:
    """Return the names of the images that a version's kubeadm requires."""
    release = versions.VERSIONS[version]
    kubeadm = str(parts.kubeadm[version] / "kubeadm")
    # It warns that it has not asked the network, in lines of several words.
    return re.findall(r"(?m)^\S+$", run(kubeadm, "config", "images", "list", f"--kubernetes-version={release}"))


def write_images(parts: Parts, version: str, directory: Path) -> list[Path]:
    """Write archives of the images that a version's kubeadm requires, with programs that were built here."""
    programs = parts.kubeadm[version]
    busybox = Path(packages.command("which", "busybox").strip())
    kinds = {
        "/coredns": ({"coredns": parts.coredns}, ["coredns"]),
        "/pause": ({"busybox": busybox}, ["busybox", "sh", "-c", _PAUSE, "pause"]),
        "": ({name: programs / name for name in (*PROGRAMS, "cluster", "kube-proxy")}, []),
    }
    archives = []
    for kind, (files, entrypoint) in kinds.items():
        tags = [name for name in image_names(parts, version) if kind == next(word for word in kinds if word in name)]
        archive = directory / f"{version}{kind.replace('/', '-')}.tar"
        images.write(archive, _layer(files), *tags, Entrypoint=entrypoint, Env=["PATH=/usr/local/bin:/usr/sbin"])
        archives.append(archive)
    return archives


def _layer(files: Mapping[str, Path]) -> bytes:
    """Return a layer with programs in /usr/local/bin, and iptables for kube-proxy."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, path in files.items():
            archive.add(path, f"usr/local/bin/{name}")
        if "kube-proxy" in files:
            archive.add(_IPTABLES)
            archive.add(str(_EXTENSIONS))
            linked = run("ldd", str(_IPTABLES), *map(str, _EXTENSIONS.iterdir()))
            for library in sorted({*re.findall(r"(/\S+) \(0x", linked)}):
                archive.add(Path(library).resolve(), library)
            for name in ("iptables", "ip6tables"):
                for link in (name, f"{name}-save", f"{name}-restore"):
                    member = tarfile.TarInfo(f"usr/sbin/{link}")
                    member.type, member.linkname = tarfile.SYMTYPE, _IPTABLES.name
                    archive.addfile(member)
    return layer.getvalue()
