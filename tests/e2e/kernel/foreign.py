"""The file tree of a guest of another architecture: Debian's user space, with the locked wheels of plugin and tests.

The packages are unpacked, not installed, so that nothing of the other architecture runs on this machine.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.common import cache, roots
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel.architectures import Architecture
from tests.e2e.kernel.parts import PROJECT

_SUITE: Final = "bookworm"
_VERSION: Final = "3.11"
"""The Python of the suite."""
_PLATFORMS: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
"""The platforms of the locked wheels."""
_PACKAGES: Final = (
    *("busybox-static", "crun", "kmod", "libstdc++6", "mount", "procps", "python3", "runc"),
    *("strace", "util-linux"),
    *("containerd", "containernetworking-plugins", "hostname", "iproute2"),
)
_TESTS: Final = (
    *("greenlet", "iniconfig", "packaging", "pluggy", "pygments", "pytest", "pytest-asyncio", "pytest-timeout"),
)
_LIBRARY: Final = f"usr/lib/python{_VERSION}"
_WHEELS: Final = f"usr/local/lib/python{_VERSION}/dist-packages"
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    # containerd copies them for each pod.
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/resolv.conf": "",
}
"""What the scripts of packages and the installer write."""


class Tree(NamedTuple):
    """The file tree that QEMU shares with a guest, read-only: by default this machine's."""

    root: Path = Path("/")
    shared: Sequence[Path] = ()
    """Directories of this machine that the tree has at the same paths: the checkout, and the parts for the guest."""
    python: str = sys.executable


def tree(architecture: Architecture) -> Tree:
    """Return the file tree of guests of an architecture. Raises MissingError."""
    if architecture.native:
        return Tree()
    name = f"tree-{architecture.debian}-{key([_SUITE, *_PACKAGES, str(_FILES), _locked()])}"
    root = cached(name, lambda directory: _build(architecture, directory)) / "root"
    return Tree(root, (PROJECT, cache.root()), "/usr/bin/python3")


def _build(architecture: Architecture, directory: Path) -> None:
    say(f"# unpacking Debian {_SUITE} for {architecture.debian}: takes minutes, once")
    root = directory / "root"
    roots.build(Suite(_SUITE, directory / "apt", architecture=architecture.debian), root, *_PACKAGES)
    for path, text in _FILES.items():
        (root / path).write_text(text)
    tags = [f"--platform={platform}_{architecture.machine}" for platform in _PLATFORMS]
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:")
    target = ("--python-version", _VERSION, *tags, "--target", str(root / _WHEELS))
    (directory / "lock").write_text(_locked())
    command(*pip, *target, "--require-hashes", "--requirement", str(directory / "lock"), seconds=1800)
    # The bytecode is the same for all architectures, and an emulated Python would compile for minutes.
    if "{}.{}".format(*sys.version_info) == _VERSION:
        sources = [str(root / path) for path in (_LIBRARY, _WHEELS)]
        command(sys.executable, "-m", "compileall", "-q", "-s", str(root), *sources, seconds=1800)
    shutil.rmtree(directory / "apt")


def _locked() -> str:
    """Return the locked requirements of the plugin and of these tests."""
    entries = re.split(r"\n(?=\w)", (PROJECT / "requirements-dev.txt").read_text())
    more = [entry for entry in entries if entry.partition("==")[0] in _TESTS]
    return (PROJECT / "requirements.txt").read_text() + "\n".join(more)
