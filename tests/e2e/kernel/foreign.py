"""The file tree of a guest of another architecture: Debian's user space, with the locked wheels of plugin and tests.

The packages are unpacked, not installed, so that nothing of the other architecture runs on this machine.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.e2e.common import cache, roots
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel.architectures import Architecture
from tests.e2e.kernel.parts import PROJECT

PYTHON: Final = "/usr/bin/python3"
_SUITE: Final = "bookworm"
_VERSION: Final = "3.11"
"""The Python of the suite."""
_PLATFORMS: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
"""The platforms of the locked wheels."""
_PACKAGES: Final = (
    *("busybox-static", "crun", "kmod", "libstdc++6", "mount", "procps", "python3", "runc"),
    *("strace", "util-linux"),
)
_TESTS: Final = (
    *("greenlet", "iniconfig", "packaging", "pluggy", "pygments", "pytest", "pytest-asyncio", "pytest-timeout"),
)
_LIBRARY: Final = f"usr/lib/python{_VERSION}"
_WHEELS: Final = f"usr/local/lib/python{_VERSION}/dist-packages"
SHARED: Final = (PROJECT, cache.root())
"""The directories of this machine that the tree has at the same paths: the checkout, and the parts for the guest."""
_ROOT: Final = "root:x:0:0:root:/root:/bin/sh\n"


def tree(architecture: Architecture) -> Path:
    """Return the root directory, which QEMU shares with the guest read-only. Raises MissingError."""
    name = f"tree-{architecture.debian}-{key([_SUITE, *_PACKAGES, _locked()])}"
    return cached(name, lambda directory: _build(architecture, directory)) / "root"


def _build(architecture: Architecture, directory: Path) -> None:
    say(f"# unpacking Debian {_SUITE} for {architecture.debian}: takes minutes, once")
    root = directory / "root"
    roots.build(Suite(_SUITE, directory / "apt", architecture=architecture.debian), root, *_PACKAGES)
    (root / "etc/passwd").write_text(_ROOT)
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
