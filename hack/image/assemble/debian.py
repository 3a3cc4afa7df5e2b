"""Records which of Debian's packages the files of the image are from, as scanners expect it in images without dpkg."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hack.image.assemble.tree import Tree

STATUS: Final = "/var/lib/dpkg/status"
RECORDS: Final = "/var/lib/dpkg/status.d"
"""One file for each package. Distroless images have the same, and Trivy, Grype and Syft read it."""
_INFO: Final = "/var/lib/dpkg/info"
_LEFT_OUT: Final = {"Status", "Conffiles"}
_RELEASE: Final = ("/etc/os-release", "/etc/debian_version")
"""From these, scanners know which release's advisories apply."""
_OWN: Final = "/usr/local/"
"""Where Debian's packages have no files: a Python that was built for the base image."""


def record(tree: Tree) -> list[str]:
    """Write the records of the packages whose files were copied, with their licenses. Return the packages' names.

    Raises LookupError for a copied file of no package.
    """
    for path in _RELEASE:
        tree.copy(path)
    packages = _installed(tree)
    owners = _owners(tree, packages)
    used: dict[str, set[str]] = {}
    for path in sorted(tree.copied):
        if path in owners:
            used.setdefault(owners[path], set()).add(path)
        elif not path.startswith(_OWN):
            raise LookupError(f"{path} of the base image is from no package of Debian")
    for name, files in sorted(used.items()):
        _copy_license(tree, name)
        tree.write(f"{RECORDS}/{name}", _without(packages[name], _LEFT_OUT))
        tree.write(f"{RECORDS}/{name}.md5sums", _checksums(tree, packages[name], files))
    return sorted(used)


def fields(paragraph: str) -> dict[str, str]:
    """Return the fields of a package, with continued lines as they are."""
    return dict(re.findall(r"^([\w-]+): ?(.*(?:\n[ \t].*)*)", paragraph, re.MULTILINE))


def _installed(tree: Tree) -> dict[str, str]:
    with open(tree.base + STATUS, encoding="utf-8") as file:
        paragraphs = file.read().strip().split("\n\n")
    return {fields(paragraph)["Package"]: paragraph for paragraph in paragraphs}


def _owners(tree: Tree, packages: Mapping[str, str]) -> dict[str, str]:
    """Return the package of each path. Paths may name a directory by a symbolic link: /lib is one to /usr/lib."""
    owners = {}
    for name, paragraph in packages.items():
        with open(_info(tree, paragraph, "list"), encoding="utf-8") as file:
            for line in file.read().splitlines():
                directory, _, last = line.rpartition("/")
                owners[f"{tree.resolve(directory)}/{last}"] = name
    return owners


def _info(tree: Tree, paragraph: str, kind: str) -> str:
    package = fields(paragraph)
    qualified = f"{_INFO}/{package['Package']}:{package['Architecture']}.{kind}"
    plain = f"{_INFO}/{package['Package']}.{kind}"
    return tree.base + (qualified if os.path.exists(tree.base + qualified) else plain)


def _checksums(tree: Tree, paragraph: str, files: set[str]) -> str:
    path = _info(tree, paragraph, "md5sums")
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    paths = ((line, tree.resolve("/" + line.split("  ", 1)[1])) for line in lines)
    # Source that byte code has replaced is not there.
    return "".join(f"{line}\n" for line, path in paths if path in files and os.path.exists(tree.inside(path)))


def _without(paragraph: str, names: set[str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields(paragraph).items() if name not in names)


def _copy_license(tree: Tree, package: str) -> None:
    """Copy the license of a package, and the common ones that its text refers to."""
    path = f"/usr/share/doc/{package}/copyright"
    if not tree.exists(path):
        return
    real = tree.copy(path)
    with open(tree.base + real, encoding="utf-8") as file:
        text = file.read()
    for license_file in sorted(set(re.findall(r"/usr/share/common-licenses/[\w.-]*\w", text))):
        if tree.exists(license_file):
            tree.copy(license_file)
