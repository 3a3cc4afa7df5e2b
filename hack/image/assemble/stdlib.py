"""The parts of Python's standard library that stay behind, and the check that nothing in the image imports them."""

from __future__ import annotations

import ast
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT_OUT: Final = frozenset(
    {
        *("EXTERNALLY-MANAGED", "sitecustomize", "site-packages", "dist-packages", "config-*"),
        *("test", "idlelib", "lib2to3", "turtledemo", "tkinter", "turtle", "curses", "_pyrepl", "rlcompleter"),
        *("ensurepip", "venv", "zipapp", "distutils", "_distutils_system_mod"),
        *("doctest", "unittest", "pydoc", "pydoc_data", "pdb", "profile", "cProfile", "pstats", "trace", "tabnanny"),
        *("dbm", "sqlite3", "shelve", "xml", "plistlib", "xmlrpc", "ftplib", "imaplib", "poplib", "smtplib", "mailbox"),
        *("antigravity", "this", "wave", "webbrowser", "modulefinder", "pickletools", "pyclbr", "symtable", "sched"),
        *("_aix_support", "_android_support", "_apple_support", "_ios_support", "_osx_support", "nturl2path", "pty"),
        *("__hello__", "__phello__", "cgi", "cgitb", "nntplib", "telnetlib"),
        *("_test*", "_ctypes_test", "_xxtestfuzz", "xxsubtype", "xxlimited*", "_lsprof", "readline"),
        *("_curses*", "_dbm", "_gdbm", "_sqlite3", "_tkinter"),
        # Each would need another shared library, and the modules that use them do without.
        *("bz2", "lzma", "_bz2", "_lzma", "_uuid"),
        # Character sets of East Asia: all texts are UTF-8.
        *("_codecs_*", "_multibytecodec"),
    }
)
"""Files, packages and extension modules of the standard library, as patterns."""

UNUSED_IMPORTS: Final = frozenset(
    {
        ("click/_termui_impl.py", "webbrowser"),  # click.launch
    }
)
"""Imports that no code of the plugin reaches: a file of a package, and the module."""


def is_left_out(path: str) -> bool:
    """Tell whether a file, relative to the directory of the standard library, stays behind."""
    first, _, rest = path.partition("/")
    if first == "__pycache__" or "/__pycache__/" in path:
        return True
    name = rest if first == "lib-dynload" else first
    return any(fnmatchcase(name.partition(".")[0], pattern) for pattern in LEFT_OUT)


def check_imports(packages: str) -> None:
    """Raise LookupError if a module below the directory ``packages`` imports, anywhere, what stays behind."""
    for path, module in _imports(packages):
        name = module.partition(".")[0]
        if is_left_out(f"{name}.py") and (path, name) not in UNUSED_IMPORTS:
            raise LookupError(f"{path} imports {module}, which the image does not have (hack/image/assemble/stdlib.py)")


def _imports(directory: str) -> Iterator[tuple[str, str]]:
    for parent, _, names in os.walk(directory):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(parent, name)
                with open(path, "rb") as file:
                    for node in ast.walk(ast.parse(file.read(), path)):
                        for module in _modules(node):
                            yield os.path.relpath(path, directory), module


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []
