"""Finds the shared libraries that programs and extension modules depend on, from their ELF headers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.image.assemble.tree import Tree

MACHINES: Final = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64"}
DLOPENED: Final = ("libgcc_s.so.1",)
"""What the C library loads when a thread ends; no header names it."""
_TEXTS: Final = {"DT_NEEDED": "needed", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
_MAGIC: Final = b"\x7fELF"


class Elf(NamedTuple):
    """What the headers of a program or a shared library tell."""

    machine: str
    interpreter: str
    """The loader of a program, for example /lib64/ld-linux-x86-64.so.2; empty for a library."""
    needed: tuple[str, ...]
    run_path: tuple[str, ...]


def read(path: str) -> Elf | None:
    """Return the headers of an ELF file, or None for another file."""
    with open(path, "rb") as file:
        if file.read(4) != _MAGIC:
            return None
        elf = ELFFile(file)
        interpreter, texts = "", []
        for segment in elf.iter_segments():
            if isinstance(segment, InterpSegment):
                interpreter = segment.get_interp_name()
            elif isinstance(segment, DynamicSegment):
                kinds = ((tag, tag.entry.d_tag) for tag in segment.iter_tags())
                texts += [(kind, getattr(tag, _TEXTS[kind])) for tag, kind in kinds if kind in _TEXTS]
        needed = [text for kind, text in texts if kind == "DT_NEEDED"]
        run_path = [part for kind, text in texts if kind != "DT_NEEDED" for part in text.split(":")]
        return Elf(elf["e_machine"], interpreter, tuple(needed), tuple(run_path))


def copy(tree: Tree, arch: str, program: str) -> None:
    """Copy the loader of ``program`` and all libraries that ELF files of the new root depend on.

    Libraries outside the loader's own directories are found only through a run path: the image has no ld.so.cache.
    Raises LookupError if one is missing, and ValueError if a file is for another machine.
    """
    elf = read(tree.inside(program))
    if elf is None:
        raise ValueError(f"{program} is not an ELF file")
    loader = tree.copy(elf.interpreter)
    directories = _default_directories(tree, loader)
    todo = [*_files(tree.root), *(f"{directory}/{name}" for name in DLOPENED for directory in directories[:1])]
    seen = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        if not os.path.lexists(tree.inside(path)):
            path = tree.copy(path)
        elf = read(tree.inside(path))
        if elf is None:
            continue
        if elf.machine != MACHINES[arch]:
            raise ValueError(f"{path} is for {elf.machine}, not for {arch}")
        todo += [_find(tree, name, path, elf, directories) for name in elf.needed]


def _default_directories(tree: Tree, loader: str) -> list[str]:
    """Return the directories in which the loader of Debian looks: that of the architecture, and those of all."""
    directories = [os.path.dirname(loader), "/usr/lib64", "/usr/lib", "/lib64", "/lib"]
    return [directory for directory in directories if tree.exists(directory)]


def _find(tree: Tree, name: str, user: str, elf: Elf, directories: list[str]) -> str:
    origin = os.path.dirname(user)
    run_path = [part.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for part in elf.run_path]
    for directory in [*run_path, *directories]:
        path = os.path.normpath(f"{directory}/{name}")
        if os.path.exists(tree.inside(path)) or tree.exists(path):
            return path
    raise LookupError(f"{user} depends on {name}, which is not in {', '.join([*run_path, *directories])}")


def _files(root: str) -> Iterator[str]:
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                yield path.removeprefix(root)
