"""The command as a single file for hosts with any supported Python: a ZIP archive of the locked wheels.

Python runs its single_file_main.py. The wheels are byte for byte those of the package index.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hack.files import compact_json, zipapp
from hack.release.errors import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hack.release.source import Project

MACHINES: Final = ("x86_64", "aarch64")
DIRECTORY: Final = "/var/cache/aosp-plugin"
"""Where hosts unpack it, as root."""


def supported(settings: str) -> list[str]:
    """Return the versions of Python that pyproject.toml has as classifiers, oldest first."""
    classifiers = tomllib.loads(settings)["project"]["classifiers"]
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name) for name in classifiers]
    return sorted((match[1] for match in found if match), key=lambda version: int(version.split(".")[1]))


def build(project: Project, output: Path, pythons: Sequence[str] = ()) -> Path:
    """Write the file for these versions of Python, or all that are supported. Raises ReleaseError."""
    plugin = next(output.glob("aosp_device_plugin-*.whl"))
    wheels = {}
    for machine in MACHINES:
        for python in pythons or supported((project.root / "pyproject.toml").read_text(encoding="utf-8")):
            found = _locked_wheels(project.root, python, machine)
            wheels[f"cpython-{python.replace('.', '')}-{machine}"] = {plugin.name: plugin.read_bytes(), **found}
    path = output / f"aosp-plugin-{project.version}.pyz"
    path.write_bytes(program(wheels, f"{DIRECTORY}/{project.version}", project.epoch))
    path.chmod(0o755)
    return path


def program(wheels: Mapping[str, Mapping[str, bytes]], directory: str, epoch: int) -> bytes:
    """Return the file with the wheels of each Python, which unpacks them to a directory that begins with this name."""
    files = {name: content for found in wheels.values() for name, content in found.items()}
    digest = hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()[:12]
    names = {target: sorted(found) for target, found in wheels.items()}
    files["contents.json"] = compact_json({"directory": f"{directory}-{digest}", "wheels": names})
    files["__main__.py"] = Path(__file__).with_name("single_file_main.py").read_bytes()
    return zipapp(files, epoch)


def _locked_wheels(root: Path, python: str, machine: str) -> dict[str, bytes]:
    """Return the wheels of requirements.txt for a Python on a machine with glibc."""
    tags = [f"--platform={tag}_{machine}" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    with tempfile.TemporaryDirectory() as directory:
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        locked = ("--require-hashes", "--only-binary=:all:", "--requirement=requirements.txt", f"--dest={directory}")
        run(*command, *locked, f"--python-version={python}", *tags, cwd=root)
        return {path.name: path.read_bytes() for path in Path(directory).iterdir()}
