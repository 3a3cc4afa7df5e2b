"""What of the packages and of the standard library is in the image."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hack.image.assemble import packages, stdlib

if TYPE_CHECKING:
    from pathlib import Path


def test_platform_tags_are_those_that_pip_accepts_on_the_target() -> None:
    assert packages.platform_tags("arm64", 19) == [
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ]


def test_wheels_of_the_target_are_installed_on_this_machine(tmp_path: Path) -> None:
    """Pip takes the one that is for the other machine, and writes no byte code."""
    wheel = tmp_path / "example-1-py3-none-manylinux_2_17_aarch64.whl"
    command = [sys.executable, "-m", "zipfile", "-c", str(wheel), "example.py", "example-1.dist-info"]
    (tmp_path / "example.py").write_text("")
    info = tmp_path / "example-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_17_aarch64\n")
    (info / "RECORD").write_text("example.py,,\n")
    subprocess.run(command, cwd=tmp_path, check=True)  # noqa: S603
    packages.install("arm64", str(tmp_path / "out"), ["--quiet", "--no-deps", "--no-index", str(wheel)])
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.suffix in {".py", ".pyc"}] == ["example.py"]


def test_files_that_the_plugin_does_not_use_are_removed_also_from_the_record(tmp_path: Path) -> None:
    kept = ["a/__init__.py", "a/core.so", "a-1.dist-info/METADATA", "a-1.dist-info/RECORD"]
    removed = [
        "bin/tool",
        "a/core.pyx",
        "a/testing.py",
        "a/only/types.pyi",
        "psutil/_psbsd.py",
        "a-1.dist-info/REQUESTED",
    ]
    for name in (*kept, *removed):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a-1.dist-info/RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in (*kept, *removed)))
    packages.clean(str(tmp_path))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert (tmp_path / "a-1.dist-info/RECORD").read_text() == "".join(f"{name},sha256=x,1\n" for name in kept)
    assert not (tmp_path / "a/only").exists()


@pytest.mark.parametrize(
    "path",
    [
        *("test/__init__.py", "idlelib/run.py", "unittest/mock.py", "ensurepip/_bundled/pip.whl", "pdb.py"),
        *("lib-dynload/_tkinter.cpython-313-x86_64-linux-gnu.so", "lib-dynload/_testcapi.cpython-313.so"),
        *("config-3.13-x86_64-linux-gnu/Makefile", "__pycache__/os.cpython-313.pyc", "json/__pycache__/x.pyc"),
        *("site-packages/pip/__init__.py", "sitecustomize.py", "EXTERNALLY-MANAGED"),
    ],
)
def test_part_of_the_standard_library_stays_behind(path: str) -> None:
    assert stdlib.is_left_out(path)


@pytest.mark.parametrize(
    "path",
    [
        *("os.py", "asyncio/events.py", "traceback.py", "encodings/idna.py", "LICENSE.txt", "tomllib/_parser.py"),
        *("lib-dynload/_ssl.cpython-313-x86_64-linux-gnu.so", "lib-dynload/_ctypes.cpython-313-aarch64-linux-gnu.so"),
        *("_sysconfigdata__linux_aarch64-linux-gnu.py", "testing_tools.py"),
    ],
)
def test_part_of_the_standard_library_is_in_the_image(path: str) -> None:
    assert not stdlib.is_left_out(path)


def test_import_of_a_part_that_stays_behind_is_an_error_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.py").write_text("def rarely():\n    from xml.sax import handler\n")
    with pytest.raises(LookupError, match=r"a/b\.py imports xml.sax, which the image does not have"):
        stdlib.check_imports(str(tmp_path))


def test_imports_that_no_code_reaches_are_allowed_in_their_file_only(tmp_path: Path) -> None:
    ((path, module),) = stdlib.UNUSED_IMPORTS
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(f"import {module}, os, asyncio.events\nfrom .xml import x\n")
    stdlib.check_imports(str(tmp_path))
    (tmp_path / path).rename(tmp_path / "other.py")
    with pytest.raises(LookupError, match=f"other.py imports {module}"):
        stdlib.check_imports(str(tmp_path))
