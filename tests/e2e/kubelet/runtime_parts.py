"""The programs of the combinations of ``--runtime``: Debian 12's packages, Debian 13's, or builds of Go modules.

Each function raises MissingError if this machine cannot have the part, and AssertionError if the build fails.
"""

import shutil
from pathlib import Path
from typing import Final

from tests.e2e.common import golang, packages, suites
from tests.e2e.common.cache import cached, root
from tests.e2e.common.packages import command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kubelet import parts
from tests.e2e.kubelet.runtimes import CRI_O

_SUITE: Final = "trixie"
"""Debian 13, whose containerd is 1.7, runc 1.1.15, and crun new enough for user namespaces."""
_CGO: Final = ("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
_CRIO_TAGS: Final = (
    *("seccomp", "containers_image_openpgp", "containers_image_ostree_stub"),
    *("exclude_graphdriver_btrfs", "btrfs_noversion"),
)
_PINNS: Final = "pinns"


def programs(name: str) -> tuple[str, str]:
    """Return the directory of a combination's container runtime, "" for Debian's, and its OCI runtime."""
    container_runtime, oci_runtime = name.split("+")
    make = _CONTAINER_RUNTIMES[container_runtime]
    if make is None:
        packages.install([oci_runtime])
        return "", oci_runtime
    newest = oci_runtime == "runc" and make != _containerd_of_debian_13
    return str(make()), str(_runc() if newest else _of_debian_13(oci_runtime))


def _containerd_of_debian_13() -> Path:
    """Return the directory of containerd, its shim and ctr. They run with Debian 12's libraries."""

    def download(directory: Path) -> None:
        files = Suite(_SUITE, directory / "apt").download("containerd")
        suites.unpack(files, directory / "root")
        for program in (directory / "root/usr/bin").iterdir():
            program.rename(directory / program.name)
        shutil.rmtree(directory / "root")
        shutil.rmtree(directory / "apt")

    return cached(f"containerd-{_SUITE}", download)


def _of_debian_13(oci_runtime: str) -> Path:
    """Return an OCI runtime, which loads its suite's libraries: it requires a newer C library than this machine has."""
    name = f"{oci_runtime}-{_SUITE}"

    def download(directory: Path) -> None:
        packages.install(["patchelf"])
        suites.unpack(Suite(_SUITE, directory / "apt").download_all(oci_runtime), directory / "root")
        (directory / "lib").mkdir()
        for library in (directory / "root/usr/lib").glob("*-linux-gnu/*.so*"):
            shutil.copy(library, directory / "lib")
        (loader,) = (directory / "lib").glob("ld-linux-*")
        program = directory / oci_runtime
        shutil.copy(next((directory / "root/usr").glob(f"*bin/{oci_runtime}")), program)
        # The directory is renamed to this name when it is complete. The program runs a copy of itself, elsewhere.
        libraries = root() / name / "lib"
        words = ("--set-interpreter", f"{libraries}/{loader.name}", "--force-rpath", "--set-rpath", str(libraries))
        command("patchelf", *words, str(program), error=AssertionError)
        shutil.rmtree(directory / "root")
        shutil.rmtree(directory / "apt")

    return cached(name, download) / oci_runtime


def _runc() -> Path:
    """Return runc, built from its Go module."""
    packages.install(_CGO)
    return golang.build("runc", parts.HERE / "runc", "tool", tags=("seccomp",), cgo=True) / "runc"


def _crio() -> Path:
    """Return the directory of CRI-O, and of pinns, which is built from the C source in CRI-O's Go module."""
    packages.install((*_CGO, "conmon"))
    module = parts.HERE / "crio"
    built = golang.build("crio", module, "tool", tags=_CRIO_TAGS, cgo=True)
    if not (built / _PINNS).exists():
        say(f"# building {_PINNS}")
        source = golang.go("list", "-m", "-f", "{{.Dir}}", "github.com/cri-o/cri-o", cwd=module).strip()
        files = [str(file) for file in Path(source, "pinns/src").glob("*.c")]
        unfinished = built / f"{_PINNS}.new"
        command("gcc", "-std=c99", "-O2", "-o", str(unfinished), *files, error=AssertionError)
        unfinished.rename(built / _PINNS)
    return built


_CONTAINER_RUNTIMES: Final = {
    "containerd-1.6": None,
    "containerd-1.7": _containerd_of_debian_13,
    "containerd-2.1": parts.containerd,
    CRI_O: _crio,
}
