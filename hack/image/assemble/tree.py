"""Copies files from the target's base image into the new root directory, with the symbolic links that lead to them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINKS = 40
"""Symbolic links on the way to a file, as in the kernel."""


class Tree:
    """A root directory under construction. Paths are absolute and as seen inside it."""

    def __init__(self, base: str, root: str) -> None:
        self.base = base
        self.root = root
        self.copied: set[str] = set()
        """The paths of the files that came from the base, without symbolic links in them."""

    def inside(self, path: str) -> str:
        """Return where a path of the new root is now."""
        return self.root + path

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Create a file."""
        target = self.inside(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(target, mode)

    def resolve(self, path: str) -> str:
        """Return a path of the base without symbolic links; the last part need not exist."""
        *_, last = self._walk(path)
        return last

    def exists(self, path: str) -> bool:
        """Tell whether the base has a file at this path."""
        return os.path.exists(self.base + self.resolve(path))

    def copy(self, path: str) -> str:
        """Copy a file from the base, with all symbolic links on the way to it. Return its path without links."""
        *links, real = self._walk(path)
        for link in links:
            self._copy_link(link)
        if real not in self.copied:
            target = self.inside(real)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(self.base + real, target)
            shutil.copymode(self.base + real, target)
            self.copied.add(real)
        return real

    def files(self, directory: str) -> Iterator[str]:
        """Yield the files below a directory of the base, as paths relative to it."""
        start = self.base + self.resolve(directory)
        for parent, names, files in os.walk(start):
            names.sort()
            for name in sorted(files):
                yield os.path.relpath(os.path.join(parent, name), start)

    def _copy_link(self, link: str) -> None:
        target = self.inside(link)
        if not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(self.base + link), target)

    def _walk(self, path: str) -> Iterator[str]:
        """Yield each symbolic link on the way to a path, and at last the path without links."""
        done, todo, links = "", path.strip("/").split("/"), 0
        while todo:
            part = todo.pop(0)
            if part in {"", "."}:
                continue
            if part == "..":
                done = os.path.dirname(done).rstrip("/")
                continue
            here = f"{done}/{part}"
            if not os.path.islink(self.base + here):
                done = here
                continue
            links += 1
            if links > _LINKS:
                raise ValueError(f"{path} of the base image has a loop of symbolic links")
            yield here
            target = os.readlink(self.base + here)
            done = "" if target.startswith("/") else done
            todo = target.strip("/").split("/") + todo
        yield done
