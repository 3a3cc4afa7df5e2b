"""Debian's packages, Debian's kernel, a binder module with binderfs, and the probe.

Each function returns the path of its part and makes the part first if the cache does not have it. It raises
MissingError if this machine cannot have the part, and BrokenError if the build of the part fails.
"""

import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.common import golang, packages
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import BrokenError, MissingError, command
from tests.e2e.common.report import say
from tests.e2e.kernel import initrd
from tests.e2e.kernel.architectures import AMD64, Architecture, UserSpace

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
BUILD: Final = PROJECT / "hack/build_binder_module.sh"

PACKAGES: Final = (
    *("busybox-static", "cpio", "runc", "crun", "strace"),
    *("linux-source", "linux-headers-amd64", "gcc", "libc6-dev", "make", "xz-utils"),
)
"""The packages that boot a guest, run containers in it, trace a process, and build a kernel module."""

MODULES: Final = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "veth", "bridge"),
    *("loop", "crc32c_generic", "ext4"),
    *("tun", "vhost_net", "vhost_vsock"),
)
"""The modules for the guest's root file system, the pods' network, disks, and virtual machines.

ext4 requires the checksum.
"""
_PARAMETERS: Final = {"loop": "max_loop=80"}
"""The module makes eight without it."""
NODE_MODULES: Final = ("virtio_net", "virtio_blk")
"""The modules for a network device and a disk, which a node of a cluster has."""
GPU_MODULES: Final = ("bochs", "bochs_drm", "virtio_gpu")
"""The modules for a card without a render node, whose name has changed with Linux 5.14, and for GPUs."""
DENIED_MODULES: Final = ("binfmt_misc",)
"""The modules for file systems that the AppArmor profile for phones denies: it is asked only for those that exist."""
KEPT: Final = (*MODULES, *NODE_MODULES, *GPU_MODULES, *DENIED_MODULES)
"""The modules that a guest may need besides the binder module."""

BINDER: Final = "binder_linux"


class Kernel(NamedTuple):
    """Debian's kernel and the modules that the guest inserts."""

    directory: Path

    @property
    def image(self) -> Path:
        """The file that QEMU boots."""
        return self.directory / "vmlinuz"

    def modules(
        self, binder: Path | None = None, devices: Sequence[str] = (), more: Sequence[str] = ()
    ) -> list[tuple[Path, str]]:
        """Return the modules and their parameters, in the order in which the guest inserts them.

        ``binder`` is the binder module, by default Debian's own; ``devices`` is the value of its parameter. ``more``
        are names of further modules.
        """
        files = {path.name.partition(".")[0]: path for path in self.directory.glob("*.ko*")}
        parameters = f"devices={','.join(devices)}"
        return [
            *((files[name], _PARAMETERS.get(name, "")) for name in _order((*MODULES, *more), files)),
            (binder or files[BINDER], parameters),
        ]


def install(architecture: Architecture = AMD64) -> None:
    """Install the Debian packages that are missing for a guest of this architecture. Raises MissingError."""
    if platform.machine() != AMD64.machine:
        raise MissingError(f"requires x86-64, and this is {platform.machine()}")
    if os.geteuid() != 0:
        raise MissingError("requires root, to install packages and to share this machine's files with a guest")
    packages.install([*PACKAGES, *architecture.packages])


def kernel() -> Kernel:
    """Return Debian's kernel. Raises MissingError."""
    release, version = debian_release()
    name = f"linux-{release}-{version}-{key(KEPT)}"
    return Kernel(cached(name, lambda path: _unpack(f"linux-image-{release}={version}", path)))


def confinement() -> Path:
    """Return the program that prints containerd's default seccomp filter and AppArmor profile. Raises MissingError."""
    packages.install(["apparmor"])
    module, source = PROJECT / "tests/e2e/kubelet/containerd", HERE / "confinement"
    return golang.build("confinement", module, "./confinement", sources=[source]) / "confinement"


def binderfs_module() -> Path:
    """Return the binder module with binderfs for Debian's kernel. Raises MissingError and BrokenError."""
    release, version = debian_release()
    source = max(Path("/usr/src").glob("linux-source-*.tar.xz"), key=_numbers, default=None)
    if source is None:
        raise MissingError("the package linux-source is installed, but /usr/src has no linux-source-*.tar.xz")
    source_version = _query("${Version}", source.name.removesuffix(".tar.xz"))

    def build(directory: Path) -> None:
        headers, output = f"/usr/src/linux-headers-{release}", directory / f"{BINDER}.ko"
        command(str(BUILD), str(source), headers, str(output), seconds=1800, error=BrokenError)

    return cached(f"{BINDER}-{key([release, version, source_version, BUILD])}", build) / f"{BINDER}.ko"


def probe(user_space: UserSpace) -> Path:
    """Return the program that uses binder devices from inside a container. Raises MissingError and BrokenError."""
    source = HERE / "probe.c"

    def build(directory: Path) -> None:
        packages.install(user_space.packages)
        compiler = (f"{user_space.compiler}gcc", "-static", "-O2", "-Wall", "-Wextra", "-o")
        command(*compiler, str(directory / "probe"), str(source), error=BrokenError)

    return cached(f"probe-{user_space.debian}-{key([source])}", build) / "probe"


def debian_release() -> tuple[str, str]:
    """Return the release and package version of Debian's kernel, which are those of the installed headers."""
    depends = _query("${Depends}", "linux-headers-amd64")
    found = re.search(r"linux-headers-(\S+) \(= ([^)]+)\)", depends)
    if found is None:
        raise MissingError(f"linux-headers-amd64 names no release: {depends}")
    return found[1], found[2]


def _query(field: str, package: str) -> str:
    return command("dpkg-query", "--show", "--showformat", field, package)


def _unpack(package: str, directory: Path) -> None:
    """Download the package of a kernel, and keep its image, its binder module and the modules that a guest may need."""
    say(f"# unpacking {package}")
    packages.update()
    command("apt-get", "download", package, directory=directory, seconds=600)
    whole = directory / "whole"
    archive = next(directory.glob("*.deb"))
    command("dpkg", "--extract", str(archive), str(whole))
    keep(whole, directory)
    shutil.rmtree(whole)
    archive.unlink()


def keep(whole: Path, directory: Path) -> None:
    """Copy a kernel's image, its binder module and the modules that a guest may need from a file tree."""
    # Debian 14 and later have the image beside the modules.
    images = [*whole.glob("boot/vmlinuz-*"), *whole.glob("usr/lib/modules/*/vmlinuz")]
    if not images:
        raise MissingError("the packages of this kernel have no image where it is expected")
    shutil.copy(images[0], directory / "vmlinuz")
    files = {path.name.partition(".")[0].replace("-", "_"): path for path in whole.rglob("*.ko*")}
    if BINDER not in files:
        raise MissingError(f"this kernel has no module {BINDER}")
    for name in _order((*KEPT, BINDER), files):
        shutil.copy(files[name], directory / f"{name}.ko{'.xz' if files[name].suffix == '.xz' else ''}")


def _order(names: Sequence[str], files: Mapping[str, Path]) -> list[str]:
    """Return modules, each after the modules that it depends on; a name without a file is built into the kernel."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in files:
            return
        for dependency in initrd.dependencies(initrd.content(files[name])):
            add(dependency.replace("-", "_"))
        order.append(name)

    for name in names:
        add(name)
    return order


def _numbers(source: Path) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", source.name)]
