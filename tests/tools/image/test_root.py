"""The root directory of the image: files of a base with the links to them, their libraries, and Debian's records."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.image.assemble import debian, libraries
from hack.image.assemble.packages import MACHINES
from hack.image.assemble.tree import Tree

ARCH = next(arch for arch, machine in MACHINES.items() if machine == platform.machine())
OTHER_ARCH = next(arch for arch in MACHINES if arch != ARCH)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a root without files, and a base that has some."""
    base = tmp_path / "base"
    for path, text in {"usr/lib/x/libc.so.1.2": "c", "etc/debian_version": "13", "usr/lib/os-release": "ID=x"}.items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(text)
    for path, target in {
        "lib": "usr/lib",
        "usr/lib/x/libc.so.1": "libc.so.1.2",
        "etc/os-release": "../usr/lib/os-release",
        "etc/absolute": "/lib/x/libc.so.1",
        "etc/loop": "loop",
    }.items():
        (base / path).symlink_to(target)
    return Tree(str(base), str(tmp_path / "root"))


@pytest.mark.parametrize("path", ["/lib/x/libc.so.1", "/etc/absolute", "/etc/../lib/./x//libc.so.1"])
def test_file_is_copied_with_the_links_to_it(tree: Tree, path: str) -> None:
    assert tree.copy(path) == "/usr/lib/x/libc.so.1.2"
    assert Path(tree.root, "usr/lib/x/libc.so.1.2").read_text() == "c"
    assert os.readlink(tree.inside("/lib")) == "usr/lib"
    assert os.readlink(tree.inside("/usr/lib/x/libc.so.1")) == "libc.so.1.2"


def test_link_that_leads_up_is_followed_inside_the_base(tree: Tree) -> None:
    assert tree.copy("/etc/os-release") == "/usr/lib/os-release"
    assert tree.copied == {"/usr/lib/os-release"}


def test_loop_of_links_is_an_error(tree: Tree) -> None:
    with pytest.raises(ValueError, match="/etc/loop of the base image has a loop"):
        tree.copy("/etc/loop")


def test_libraries_are_those_that_the_loader_of_this_machine_finds(tmp_path: Path) -> None:
    """``ldd`` asks the loader, and this code reads headers."""
    program = shutil.which("git")
    assert program
    program = os.path.realpath(program)
    tree = Tree("", str(tmp_path / "root"))
    tree.copy(program)
    libraries.copy(tree, ARCH, program)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    expected = {os.path.realpath(path) for path in re.findall(r"(/\S+) \(0x", listed)}
    assert expected
    assert expected <= tree.copied
    assert {os.path.basename(path) for path in tree.copied - expected - {program}} <= set(libraries.DLOPENED)


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot requires root")
def test_program_runs_with_its_libraries_alone(tmp_path: Path) -> None:
    tree = Tree("", str(tmp_path / "root"))
    program = tree.copy("/bin/bash")
    libraries.copy(tree, ARCH, program)
    command = ["chroot", tree.root, program, "-c", "echo $((6 * 7))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"  # noqa: S603


def test_file_of_another_machine_is_an_error(tmp_path: Path) -> None:
    tree = Tree("", str(tmp_path / "root"))
    with pytest.raises(ValueError, match=f"/usr/.* is for EM_.*, not for {OTHER_ARCH}"):
        libraries.copy(tree, OTHER_ARCH, tree.copy("/bin/bash"))


def test_library_that_the_base_does_not_have_is_an_error(tmp_path: Path) -> None:
    whole, base = Tree("", str(tmp_path / "whole")), tmp_path / "whole"
    program = whole.copy("/bin/bash")
    libraries.copy(whole, ARCH, program)
    (library,) = [path for path in whole.copied if "/libtinfo.so" in path]
    os.unlink(whole.inside(library))
    tree = Tree(str(base), str(tmp_path / "root"))
    with pytest.raises(LookupError, match=f"{program} depends on libtinfo.so.6, which is not in /"):
        libraries.copy(tree, ARCH, tree.copy(program))


def test_headers_of_a_file_that_is_no_elf_file_are_none() -> None:
    assert libraries.read(__file__) is None
    assert libraries.read(os.path.realpath(sys.executable)) is not None


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc (2.41-12)
Version: 2.41-12+deb13u4
Conffiles:
 /etc/ld.so.conf.d/x 1234
Description: GNU C Library
 Contains the standard libraries.

Package: base-files
Status: install ok installed
Architecture: amd64
Version: 13

Package: unused
Architecture: all
Version: 1
"""


@pytest.fixture
def debian_tree(tree: Tree) -> Tree:
    info = Path(tree.base, "var/lib/dpkg/info")
    info.mkdir(parents=True)
    (info.parent / "status").write_text(STATUS)
    (info / "libc6:amd64.list").write_text("/.\n/lib\n/lib/x\n/lib/x/libc.so.1.2\n/lib/x/other\n")
    (info / "libc6:amd64.md5sums").write_text("aaa  lib/x/libc.so.1.2\nbbb  lib/x/other\n")
    (info / "base-files.list").write_text("/.\n/etc/debian_version\n/usr/lib/os-release\n")
    (info / "unused.list").write_text("/.\n")
    for path in ("usr/share/doc/libc6/copyright", "usr/share/common-licenses/LGPL-2.1"):
        Path(tree.base, path).parent.mkdir(parents=True)
        Path(tree.base, path).write_text("see /usr/share/common-licenses/LGPL-2.1.")
    return tree


def test_packages_of_the_copied_files_are_recorded(debian_tree: Tree) -> None:
    debian_tree.copy("/lib/x/libc.so.1")
    assert debian.record(debian_tree) == ["base-files", "libc6"]
    records = Path(debian_tree.inside(debian.RECORDS))
    package = debian.fields((records / "libc6").read_text())
    assert (package["Version"], package["Source"]) == ("2.41-12+deb13u4", "glibc (2.41-12)")
    assert package["Description"] == "GNU C Library\n Contains the standard libraries."
    assert not {"Status", "Conffiles"} & set(package)


def test_checksums_are_those_of_the_files_that_are_there(debian_tree: Tree) -> None:
    debian_tree.copy("/lib/x/libc.so.1")
    debian.record(debian_tree)
    checksums = Path(debian_tree.inside(f"{debian.RECORDS}/libc6.md5sums")).read_text()
    assert checksums == "aaa  lib/x/libc.so.1.2\n"


def test_license_of_a_package_is_copied_with_the_common_license_that_it_names(debian_tree: Tree) -> None:
    debian_tree.copy("/lib/x/libc.so.1")
    debian.record(debian_tree)
    assert debian_tree.copied >= {"/usr/share/doc/libc6/copyright", "/usr/share/common-licenses/LGPL-2.1"}


def test_file_of_no_package_is_an_error(debian_tree: Tree) -> None:
    Path(debian_tree.base, "usr/lib/stray").write_text("")
    debian_tree.copy("/usr/lib/stray")
    with pytest.raises(LookupError, match="/usr/lib/stray of the base image is from no package of Debian"):
        debian.record(debian_tree)


def test_python_that_was_built_for_the_base_is_of_no_package(debian_tree: Tree) -> None:
    path = Path(debian_tree.base, "usr/local/bin/python3.13")
    path.parent.mkdir(parents=True)
    path.write_text("")
    debian_tree.copy("/usr/local/bin/python3.13")
    assert debian.record(debian_tree) == ["base-files"]
