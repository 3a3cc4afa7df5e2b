"""Takes Python out of the base image: the program, the standard library, and a virtual environment for the packages."""

from __future__ import annotations

import compileall
import os
import platform
import py_compile
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hack.image.assemble import stdlib

if TYPE_CHECKING:
    from hack.image.assemble.tree import Tree

VENV: Final = "/opt/venv"
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES: Final = f"{VENV}/lib/python{VERSION}/site-packages"
_SCRIPT: Final = """#!{venv}/bin/python
import sys

from aosp_plugin.__main__ import main

sys.exit(main())
"""


def copy(tree: Tree) -> str:
    """Copy the program and the standard library, and return the program's path.

    The build's base has the same Python as the target's base, for another machine, so that its paths are the same too.
    Raises LookupError if the target's is another one.
    """
    # Of the Python of the base, not of the virtual environment that runs this.
    library = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})
    program = os.path.realpath(sys.executable)
    if not tree.exists(program):
        raise LookupError(f"the target's base image has no {program}: is it the build's image for another machine?")
    for path in tree.files(library):
        if not stdlib.is_left_out(path):
            _compare(tree, library, path)
            tree.copy(f"{library}/{path}")
    real = tree.copy(program)
    _make_venv(tree, real)
    _compile(tree, library)
    return real


def _compare(tree: Tree, library: str, path: str) -> None:
    """Raise LookupError if a module of the target is not the build's: the byte code would be another version's."""
    if path.endswith(".py") and not path.startswith("_sysconfigdata_"):
        here, there = Path(library, path), Path(tree.base + tree.resolve(f"{library}/{path}"))
        if not here.exists() or here.read_bytes() != there.read_bytes():
            raise LookupError(f"{library}/{path} differs between the build's and the target's base image")


def _make_venv(tree: Tree, program: str) -> None:
    home = os.path.dirname(program)
    version = platform.python_version()
    tree.write(f"{VENV}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")
    os.makedirs(tree.inside(f"{VENV}/bin"))
    os.symlink(program, tree.inside(f"{VENV}/bin/python"))
    tree.write(f"{VENV}/bin/aosp-plugin", _SCRIPT.format(venv=VENV), 0o755)


def _compile(tree: Tree, library: str) -> None:
    """Compile all modules, unchecked because the image never changes.

    The standard library's byte code takes the place of its source; packages keep theirs, for the lines in tracebacks.
    One process compiles all in the order of their names: what else a process has in memory can change a file's bytes.
    """
    for directory, legacy in ((tree.resolve(library), True), (SITE_PACKAGES, False)):
        if not compileall.compile_dir(
            tree.inside(directory),
            force=True,
            quiet=1,
            legacy=legacy,
            stripdir=tree.root,
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        ):
            raise ValueError(f"{directory} has modules that cannot be compiled")
    for path in Path(tree.inside(tree.resolve(library))).rglob("*.py"):
        path.unlink()
