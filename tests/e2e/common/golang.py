"""Build Go programs with the versions that a go.mod pins, and cache them.

All builds share Go's build cache and the same compiler flags, so packages that programs of one module have in common
compile once. Without DWARF and inlining the compiler needs a quarter less time; a program whose speed matters is built
with the compiler's defaults.
"""

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.common import cache
from tests.e2e.common.packages import MissingError, command
from tests.e2e.common.report import say

_ENVIRONMENT: Final = {"GOFLAGS": "-mod=mod -buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
_COMPILER: Final = "-gcflags=all=-dwarf=false -l"


def go(*arguments: str, cwd: Path, seconds: float = 3600, cgo: bool = False, target: str = "") -> str:
    """Run the go command and return its output. Raises MissingError without Go, AssertionError if it fails.

    ``target`` is an architecture as Debian and Go call it, by default this machine's.
    """
    if not shutil.which("go"):
        raise MissingError("requires Go 1.24 or newer")
    variables = _ENVIRONMENT | ({"CGO_ENABLED": "1"} if cgo else {}) | ({"GOARCH": target} if target else {})
    words = ("env", *(f"{name}={value}" for name, value in variables.items()), "go", *arguments)
    try:
        return command(*words, directory=cwd, seconds=seconds, error=AssertionError)
    except AssertionError:  # Go gives up a download that fails once; what is downloaded and compiled stays
        return command(*words, directory=cwd, seconds=seconds, error=AssertionError)


def pinned(module: Path, path: str) -> str:
    """Return the version of a module that the go.mod of another one requires."""
    found = re.search(rf"{re.escape(path)} (v\S+)", (module / "go.mod").read_text())
    assert found is not None, f"go.mod does not name {path}"
    return found[1]


def kubernetes_version(version: str) -> str:
    """Return the linker's options for the version that a program of Kubernetes reports."""
    major, minor, _ = version.removeprefix("v").split(".")
    path = "k8s.io/component-base/version"
    return f"-X {path}.gitVersion={version} -X {path}.gitMajor={major} -X {path}.gitMinor={minor}"


def build(
    name: str,
    module: Path,
    *packages: str,
    link: str = "",
    tags: Sequence[str] = (),
    sources: Sequence[Path] = (),
    fast: bool = False,
    cgo: bool = False,
    target: str = "",
) -> Path:
    """Return the directory with the programs of the packages, built in the module's directory.

    ``link`` is passed to the linker. ``sources`` are files and directories besides go.mod and go.sum that the programs
    depend on; directories of other modules are copied into this one. ``fast`` is for programs whose speed matters,
    ``cgo`` for those with parts in C. ``target`` is the architecture that they are for, as for :func:`go`.
    """
    compiler = () if fast else (_COMPILER,)
    files = [module / "go.mod", module / "go.sum", *sources]
    link = f"-s -w {link}".strip()

    def compile_packages(directory: Path) -> None:
        say(f"# building {name}: takes minutes, once")
        started = time.monotonic()
        # A copy, because go writes what it resolves into go.mod and go.sum.
        copy = directory / "module"
        shutil.copytree(module, copy)
        for source in sources:
            if source.is_dir() and not source.is_relative_to(module):
                shutil.copytree(source, copy / source.name)
        flags = ("-trimpath", *compiler, "-tags", ",".join(tags), "-ldflags", link)
        go("build", *flags, "-o", f"{directory}/", *packages, cwd=copy, cgo=cgo, target=target)
        shutil.rmtree(copy)
        say(f"# {name} took {time.monotonic() - started:.0f} s")

    key_parts: list[str | Path] = [*files, *packages, *tags, link, *compiler, go("version", cwd=module)]
    key_parts += ["cgo"] if cgo else []
    key_parts += [target] if target else []
    return cache.cached(f"{name}-{cache.key(key_parts)}", compile_packages)
