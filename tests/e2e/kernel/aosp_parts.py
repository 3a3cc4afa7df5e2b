"""Android's own binder software for the boot ``android``: libbinder, its service managers, tools and tests of AOSP 14.

Debian has their sources in a package that builds other programs; ``aosp/Makefile`` builds these, for glibc.
"""

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.common import roots, suites
from tests.e2e.common.cache import cached, key
from tests.e2e.common.packages import BrokenError, command
from tests.e2e.common.report import say
from tests.e2e.common.suites import Suite
from tests.e2e.kernel.architectures import AMD64, UserSpace
from tests.e2e.kernel.parts import HERE

VERSIONS: Final = "versions"
"""The file that lists what the programs were made from."""
_PLACES: Final = {"system/bin": "[!v]*", "vendor/bin": "vnd*"}
"""Where Android has which programs; the PATH of a phone's container leads to the first."""

_RECIPE: Final = HERE / "aosp"
_SOURCE: Final = "android-platform-tools=34.0.5-12"
_ORIGINAL: Final = ("*.orig.tar.xz", "4893f6a85b205f1df2c35cde5d6ca3bedd5e9f19afdb3b5ac781e647aa2243f4")
"""The name of the file with AOSP's sources, and its SHA-256."""
_SUITE: Final = "trixie"
_TOOLS: Final = ("clang", "lld", "make")
_LIBRARIES: Final = (
    *("libc6-dev", "libstdc++-14-dev", "libgmock-dev", "libselinux1-dev"),
    *("android-libbase-dev", "android-libcutils-dev", "android-liblog-dev", "android-libutils-dev"),
)
_AIDL: Final = ("sid", "aidl")
"""The suite with an aidl that understands the interfaces of AOSP 14; that of trixie is of Android 10."""
_CHANGES: Final = (
    (
        "frameworks/native/cmds/dumpsys/dumpsys.cpp",
        "std::max(diff.count(), 0LL)",
        "std::max<long long>(diff.count(), 0)",
        "the count is a long with glibc's and a long long with Android's C++ library",
    ),
)
"""What is changed in AOSP's sources: file, text, new text, reason."""


def build(user_space: UserSpace = AMD64.user_space) -> Path:
    """Return the directory with the programs, the loader and the libraries, to be copied over the root of a container.

    Raises MissingError if this machine cannot get the packages, and BrokenError if the build fails.
    """
    words = (_SOURCE, *_ORIGINAL, _SUITE, *_TOOLS, *_LIBRARIES, *_AIDL, str(_CHANGES), str(_PLACES))
    name = f"aosp-{user_space.debian}-{key([_RECIPE, *words])}"
    return cached(name, lambda directory: _build(user_space, directory))


def _build(user_space: UserSpace, directory: Path) -> None:
    say(f"# building libbinder of AOSP 14 from Debian's {_SOURCE}: takes minutes, once")
    work = directory / "work"
    root = work / "root"
    suite, sid = Suite(_SUITE, work / "apt", sources=True), Suite(_AIDL[0], work / "apt-sid")
    versions = roots.build(suite, root, *_TOOLS, *_LIBRARIES)
    if user_space != AMD64.user_space:
        # Of 32-bit architectures, a mirror may have lists of the security archive that do not fit its Release file.
        target = Suite(_SUITE, work / "apt-target", architecture=user_space.debian, security=False)
        suites.unpack(target.download_all(*_LIBRARIES), root)
    aidl = sid.download(_AIDL[1])
    suites.unpack(aidl, root)
    (root / "aosp").mkdir()
    source = suite.source(_SOURCE, root / "aosp")
    _check(root / "aosp")
    for name, text, new, _ in _CHANGES:
        before = (source / name).read_text()
        if before.count(text) != 1:
            raise BrokenError(f"{name} of {_SOURCE} has {before.count(text)} times: {text}")
        (source / name).write_text(before.replace(text, new))
    shutil.copytree(_RECIPE, root / "recipe")
    compiler = f"clang++ --target={user_space.compiler.removesuffix('-')}"
    variables = f"SOURCE=/aosp/{source.name} HERE=/recipe TRIPLE={user_space.triple} CXX='{compiler}'"
    roots.run(root, f"mkdir -p /tmp && cd /recipe && make --silent --jobs $(nproc) {variables}", seconds=7200)
    for place, pattern in _PLACES.items():
        _copy(user_space, root, [*(root / "recipe/bin").glob(pattern)], directory, place)
    recorded = [line for line in versions + suites.versions(aidl) if line.startswith(("aidl", "clang_", "libc6_"))]
    (directory / VERSIONS).write_text("\n".join([_SOURCE, *recorded]))
    shutil.rmtree(work)


def _check(directory: Path) -> None:
    """Compare the checksum of AOSP's sources. Raises BrokenError."""
    pattern, expected = _ORIGINAL
    (file,) = directory.glob(pattern)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != expected:
        raise BrokenError(f"{file.name} has the checksum {digest}, not {expected}")


def _copy(user_space: UserSpace, root: Path, programs: Sequence[Path], target: Path, place: str) -> None:
    """Copy programs into a directory of the root of a container, with the loader and the libraries of a file tree."""
    files = {
        user_space.loader: root / "usr" / user_space.loader,
        **{f"{place}/{program.name}": program for program in programs},
        **_libraries(user_space, root, programs),
    }
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)


def _libraries(user_space: UserSpace, root: Path, programs: Sequence[Path]) -> dict[str, Path]:
    """Return the libraries that programs load, with their paths in the container, from the headers of the files."""
    found: dict[str, Path] = {}
    todo = [*programs]
    while todo:
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", command("readelf", "--dynamic", str(todo.pop()), error=BrokenError))
        paths = [f"usr/lib/{user_space.triple}/{name}" for name in names]
        # The loader, which is among the names, is not in this directory in each suite.
        new = {path: root / path for path in paths if path not in found and (root / path).exists()}
        found |= new
        todo += new.values()
    return found
