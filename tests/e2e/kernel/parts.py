"""The real parts: Debian's packages, a kernel with binderfs, Debian's own kernel, and the probe.

Each part is a function that returns where it is, and makes it first if it is not there. :class:`MissingError` means
that this machine can't have it, :class:`BrokenError` that something is wrong with how it is made.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.cache import kept, key
from tests.e2e.common.packages import BrokenError, MissingError, command
from tests.e2e.common.report import say
from tests.e2e.kernel import initrd

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
_BUILD: Final = PROJECT / "hack/build_kernel.sh"
_FRAGMENT: Final = HERE / "fragment.config"

PACKAGES: Final = (
    *("qemu-system-x86", "busybox-static", "cpio", "runc", "crun"),
    *("linux-source", "gcc", "libc6-dev", "make", "flex", "bison", "bc", "libelf-dev", "libssl-dev", "xz-utils"),
)
"""What boots a guest and runs containers in it, and what builds a kernel."""

_GUEST_MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""What a kernel that has everything as modules needs to find the guest's root."""


class Stock:
    """Debian's own kernel, as far as it was unpacked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.kernel = directory / "vmlinuz"

    def modules(self, binder_nodes: list[str]) -> list[tuple[Path, str]]:
        """Return the modules in the order in which they are inserted; binder's makes these nodes."""
        names = (self._directory / "order").read_text().split()
        parameters = {"binder_linux": f"devices={','.join(binder_nodes)}"}
        files = [next(self._directory.glob(f"{name}.ko*")) for name in names]
        return [(file, parameters.get(name, "")) for name, file in zip(names, files, strict=True)]


def install() -> None:
    """Install the Debian packages that are missing. Raises MissingError."""
    if platform.machine() != "x86_64":
        raise MissingError(f"the guest is an x86-64 machine, and this is {platform.machine()}")
    if os.geteuid() != 0:
        raise MissingError("not root: packages are installed, and a guest sees this machine's files as root does")
    packages.install(PACKAGES)


def kernel() -> Path:
    """Return the kernel with binderfs. Raises MissingError and BrokenError."""
    source = max(Path("/usr/src").glob("linux-source-*.tar.xz"), key=_version, default=None)
    if source is None:
        raise MissingError("no /usr/src/linux-source-*.tar.xz, though linux-source is installed")
    version = command("dpkg-query", "--show", "--showformat", "${Version}", source.name.removesuffix(".tar.xz"))

    def build(directory: Path) -> None:
        say(f"# building Linux {version}, with binderfs: minutes, once")
        command(
            str(_BUILD),
            str(source),
            str(_FRAGMENT),
            str(directory / "bzImage"),
            seconds=7200,
            error=BrokenError,
        )

    return kept(f"kernel-{key([version, _FRAGMENT, _BUILD])}", build) / "bzImage"


def stock() -> Stock:
    """Return Debian's own kernel. Raises MissingError."""
    package = _stock_package()
    if package is None:
        packages.update()
        package = _stock_package()
    if package is None:
        raise MissingError("apt-get knows no linux-image-amd64")
    return Stock(kept(f"stock-{package.replace('=', '-')}", lambda directory: _unpack(package, directory)))


def probe() -> Path:
    """Return the program that tries nodes from inside a container. Raises BrokenError."""
    source = HERE / "probe.c"

    def build(directory: Path) -> None:
        compiler = ("gcc", "-static", "-O2", "-Wall", "-Wextra", "-o")
        command(*compiler, str(directory / "probe"), str(source), error=BrokenError)

    return kept(f"probe-{key([source])}", build) / "probe"


def _stock_package() -> str | None:
    """Return ``name=version`` of the package that linux-image-amd64 stands for."""
    found = re.search(r"Depends: (linux-image-\S+)", command("apt-cache", "depends", "linux-image-amd64", check=False))
    if found is None:
        return None
    versions = re.search(r"^Version: (\S+)$", command("apt-cache", "show", "--no-all-versions", found[1]), re.MULTILINE)
    return f"{found[1]}={versions[1]}" if versions else None


def _unpack(package: str, directory: Path) -> None:
    """Keep the kernel, binder's module, and the modules without which the guest finds no root."""
    say(f"# unpacking {package}")
    command("apt-get", "download", package, directory=directory, seconds=600)
    whole = directory / "whole"
    command("dpkg", "--extract", str(next(directory.glob("*.deb"))), str(whole))
    shutil.copy(next(whole.glob("boot/vmlinuz-*")), directory / "vmlinuz")
    files = {one.name.partition(".")[0].replace("-", "_"): one for one in whole.rglob("*.ko*")}
    order: list[str] = []

    def take(name: str) -> None:
        """Take a module after those that it needs; one that is not there is built in."""
        if name in order or name not in files:
            return
        for other in initrd.needed(initrd.content(files[name])):
            take(other.replace("-", "_"))
        order.append(name)
        shutil.copy(files[name], directory / f"{name}.ko{'.xz' if files[name].suffix == '.xz' else ''}")

    for name in (*_GUEST_MODULES, "binder_linux"):
        take(name)
    if "binder_linux" not in order:
        raise MissingError(f"{package} has no binder_linux module")
    (directory / "order").write_text("\n".join(order))
    shutil.rmtree(whole)
    next(directory.glob("*.deb")).unlink()


def _version(source: Path) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", source.name)]
