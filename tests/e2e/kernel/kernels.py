"""The kernels of ``--kernel``: Debian's of this machine's suite and of others, and the Rust driver of the newest.

Debian builds its kernels without binderfs; a module with binderfs is built from the kernel's own source package, by the
compiler of its suite. Debian does not build the Rust driver, which cannot be a module: ``rust_kernel`` builds a whole
kernel.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.common import roots, suites
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel import parts, rust_kernel
from tests.e2e.kernel.architectures import AMD64, Architecture
from tests.e2e.kernel.parts import BINDER, BUILD, Kernel

DEFAULT: Final = "bookworm"
"""The kernel that Debian has for this machine, which has its packages installed."""
_SUITES: Final = {DEFAULT: DEFAULT, "bullseye": "bullseye", "trixie": "trixie", "newest": "sid"}
RUST: Final = "newest-rust"
NAMES: Final = (*_SUITES, RUST)

_TOOLS: Final = ("binutils", "make", "perl-base")
_BINDERFS: Final = "with-binderfs"
"""The directory of the module with binderfs, beside Debian's own module."""


class Bootable(NamedTuple):
    """A kernel as a boot starts it."""

    image: Path
    modules: Sequence[tuple[Path, str]] = ()
    """The modules that the guest inserts, with their parameters."""
    parameters: str = ""
    """For the kernel's command line."""


def bootable(
    name: str, devices: Sequence[str] = (), architecture: Architecture = AMD64, more: Sequence[str] = ()
) -> Bootable:
    """Return a kernel with binderfs that creates ``devices`` in each one. Raises MissingError and BrokenError.

    ``more`` are names of further modules.
    """
    if name == RUST:
        if not architecture.native:
            raise MissingError(f"the kernel with the Rust driver is not built for {architecture.debian}")
        directory = rust_kernel.build()
        parameters = f"{rust_kernel.PARAMETER}={','.join(devices)}"
        return Bootable(directory / rust_kernel.IMAGE, parameters=parameters)
    if name == DEFAULT and architecture.native:
        kernel, module = parts.kernel(), parts.binderfs_module()
    else:
        kernel = _of_suite(name, architecture)
        module = kernel.directory / _BINDERFS / f"{BINDER}.ko"
    return Bootable(kernel.image, kernel.modules(module, devices, more))


def stock(name: str, devices: Sequence[str], architecture: Architecture = AMD64) -> Bootable:
    """Return Debian's own kernel without binderfs, with these devices in /dev. Raises MissingError."""
    if name == RUST:
        raise MissingError("the kernel with the Rust driver is built with binderfs")
    kernel = parts.kernel() if name == DEFAULT and architecture.native else _of_suite(name, architecture)
    return Bootable(kernel.image, kernel.modules(devices=devices))


def _of_suite(name: str, architecture: Architecture) -> Kernel:
    """Return the kernel of a suite, and its module with binderfs."""
    digest = key([BUILD, *_TOOLS, *architecture.build, *parts.KEPT])
    return Kernel(
        cached(f"linux-{name}-{architecture.debian}-{digest}", lambda path: _build(_SUITES[name], architecture, path))
    )


def _build(name: str, architecture: Architecture, directory: Path) -> None:
    say(f"# building a binder module for the kernel of Debian {name}, {architecture.debian}: takes minutes, once")
    suite, root = Suite(name, directory / "apt"), directory / "root"
    target = suite if architecture.native else Suite(name, directory / "apt-target", architecture=architecture.debian)
    image, headers = (
        _newest(target, f"linux-{kind}-{architecture.debian}", f"linux-{kind}-") for kind in ("image", "headers")
    )
    source = _newest(suite, "linux-source", "linux-source-")
    if architecture.native:
        roots.build(suite, root, source, headers, *_TOOLS, *architecture.build)
    else:
        # What the headers depend on, kbuild and the compiler, has programs, which are for this machine.
        common, kbuild = (_newest(target, headers, f"linux-{kind}-") for kind in ("headers", "kbuild"))
        roots.build(suite, root, source, kbuild, *_TOOLS, *architecture.build)
        suites.unpack(target.download(headers, common), root)
    # Without what it depends on: an initrd is not needed. Newer suites have the image's content in further packages.
    further = re.findall(r"linux-(?:binary|modules)-[^ ,]+", target.field(image, "Depends"))
    suites.unpack(target.download(image, *further), root)
    shutil.copy(BUILD, root)
    command = (f"/{BUILD.name}", f"/usr/src/{source}.tar.xz", f"/usr/src/{headers}", f"/{BINDER}.ko")
    roots.run(root, " ".join([*architecture.make, *command]), seconds=1800)
    parts.keep(root, directory)
    (directory / _BINDERFS).mkdir()
    shutil.copy(root / f"{BINDER}.ko", directory / _BINDERFS)
    for unneeded in directory.glob("apt*"):
        shutil.rmtree(unneeded)
    shutil.rmtree(root)


def _newest(suite: Suite, package: str, prefix: str) -> str:
    """Return the package that a package without a version in its name depends on."""
    found = re.search(rf"{prefix}[0-9][^ ,]*", suite.field(package, "Depends"))
    if found is None:
        raise MissingError(f"{package} of Debian {suite.name} depends on no {prefix}*")
    return found[0]
