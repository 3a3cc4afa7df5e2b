"""A whole kernel with the Rust binder driver, from the newest kernel source in Debian.

It is built by the compilers of its suite, from Debian's package ``linux-source`` and the small configuration
``rust_kernel.config``; nothing is a module.
"""

import shutil
from pathlib import Path
from typing import Final

from tests.e2e.common import roots
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite

PARAMETER: Final = "rust_binder.rust_devices"
"""The parameter with the names of the devices that each new binderfs has."""
IMAGE: Final = "bzImage"

_SUITE: Final = "sid"
_CONFIGURATION: Final = Path(__file__).resolve().parent / "rust_kernel.config"
_DRIVER: Final = "CONFIG_ANDROID_BINDER_IPC_RUST=y"
_TOOLS: Final = (
    *("bc", "bison", "flex", "gcc", "kmod", "libc6-dev", "libelf-dev", "libssl-dev", "make", "perl-base"),
    *("bindgen", "rust-src", "rustc"),
)
_BUILD: Final = f"""
mkdir -p /tmp /linux && cd /linux
tar --extract --xz --file /usr/src/linux-source-*.tar.xz --strip-components 1
make --silent tinyconfig
cat /{_CONFIGURATION.name} >>.config
make --silent olddefconfig
grep --quiet {_DRIVER} .config || exit 0
make --silent --jobs "$(nproc)" bzImage
cp arch/x86/boot/bzImage /{IMAGE}
"""
_SECONDS: Final = 4 * 3600
"""The limit of a build, which takes minutes on an idle machine."""


def build() -> Path:
    """Return the directory with the kernel and its configuration. Raises MissingError and BrokenError."""
    return cached(f"linux-rust-{key([_CONFIGURATION, _SUITE, _BUILD, *_TOOLS])}", _build)


def _build(directory: Path) -> None:
    say("# building the newest kernel of Debian with the Rust binder driver: takes up to an hour, once")
    suite, root = Suite(_SUITE, directory / "apt"), directory / "root"
    package = suite.field("linux-source", "Depends").partition(" ")[0]
    roots.build(suite, root, package, *_TOOLS)
    shutil.copy(_CONFIGURATION, root)
    roots.run(root, _BUILD, seconds=_SECONDS)
    if not (root / IMAGE).exists():
        raise MissingError(f"{package} cannot have {_DRIVER} with the compilers of Debian {_SUITE}")
    shutil.copy(root / IMAGE, directory)
    shutil.copy(root / "linux/.config", directory / "config")
    shutil.rmtree(root)
    shutil.rmtree(directory / "apt")
