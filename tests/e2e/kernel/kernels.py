"""The kernels of ``--kernel``: Debian's for this machine, Debian's of other suites, and the Rust driver of the newest.

Debian builds its kernels without binderfs; a module with binderfs is built from the kernel's own source package, by the
compiler of its suite. Debian does not build the Rust driver, which cannot be a module: ``rust_kernel`` builds a whole
kernel.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.common import roots, suites
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel import parts, rust_kernel
from tests.e2e.kernel.parts import BINDER, BUILD, Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DEFAULT: Final = "bookworm"
"""The kernel that Debian has for this machine."""
_SUITES: Final = {"bullseye": "bullseye", "trixie": "trixie", "newest": "sid"}
_RUST: Final = "newest-rust"
NAMES: Final = (DEFAULT, *_SUITES, _RUST)

_TOOLS: Final = ("binutils", "gcc", "make", "perl-base")
_BINDERFS: Final = "with-binderfs"
"""The directory of the module with binderfs, beside Debian's own module."""


class Bootable(NamedTuple):
    """A kernel as a boot starts it."""

    image: Path
    modules: Sequence[tuple[Path, str]] = ()
    """The modules that the guest inserts, with their parameters."""
    parameters: str = ""
    """For the kernel's command line."""


def bootable(name: str, devices: Sequence[str] = ()) -> Bootable:
    """Return a kernel with binderfs that creates ``devices`` in each one. Raises MissingError and BrokenError."""
    if name == _RUST:
        directory = rust_kernel.build()
        parameters = f"{rust_kernel.PARAMETER}={','.join(devices)}"
        return Bootable(directory / rust_kernel.IMAGE, parameters=parameters)
    if name == DEFAULT:
        kernel, module = parts.kernel(), parts.binderfs_module()
    else:
        kernel = _of_suite(name)
        module = kernel.directory / _BINDERFS / f"{BINDER}.ko"
    return Bootable(kernel.image, kernel.modules(module, devices))


def stock(name: str, devices: Sequence[str]) -> Bootable:
    """Return Debian's own kernel without binderfs, with these devices in /dev. Raises MissingError."""
    if name == _RUST:
        raise MissingError("the kernel with the Rust driver is built with binderfs")
    kernel = parts.kernel() if name == DEFAULT else _of_suite(name)
    return Bootable(kernel.image, kernel.modules(devices=devices))


def _of_suite(name: str) -> Kernel:
    """Return the kernel of a suite, and its module with binderfs."""
    return Kernel(cached(f"linux-{name}-{key([BUILD, *_TOOLS])}", lambda path: _build(_SUITES[name], path)))


def _build(name: str, directory: Path) -> None:
    say(f"# building a binder module for the kernel of Debian {name}: takes minutes, once")
    suite, root = Suite(name, directory / "apt"), directory / "root"
    image, headers = (_newest(suite, f"linux-{kind}-amd64", f"linux-{kind}-") for kind in ("image", "headers"))
    source = _newest(suite, "linux-source", "linux-source-")
    roots.build(suite, root, source, headers, *_TOOLS)
    # Without what it depends on: an initrd is not needed. Newer suites have the image's content in further packages.
    further = re.findall(r"linux-(?:binary|modules)-[^ ,]+", suite.field(image, "Depends"))
    suites.unpack(suite.download(image, *further), root)
    shutil.copy(BUILD, root)
    command = (f"/{BUILD.name}", f"/usr/src/{source}.tar.xz", f"/usr/src/{headers}", f"/{BINDER}.ko")
    roots.run(root, " ".join(command), seconds=1800)
    parts.keep(root, directory)
    (directory / _BINDERFS).mkdir()
    shutil.copy(root / f"{BINDER}.ko", directory / _BINDERFS)
    shutil.rmtree(root)
    shutil.rmtree(directory / "apt")


def _newest(suite: Suite, package: str, prefix: str) -> str:
    """Return the package that a package without a version in its name depends on."""
    found = re.search(rf"{prefix}[0-9][^ ,]*", suite.field(package, "Depends"))
    if found is None:
        raise MissingError(f"{package} of Debian {suite.name} depends on no {prefix}*")
    return found[0]
