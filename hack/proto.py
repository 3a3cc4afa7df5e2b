"""``make generate``: generate the Python modules for the .proto files of the kubelet's APIs.

The stand-in kubelet has modules of its own, made from the same files. Their messages have other names, which are not on
the wire: a process can load those of the stand-in beside those of a plugin, which may be of another version.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = Path("aosp_plugin/framework/api")
STANDIN = Path("kubelet_standin/api")
SERVICES = ("deviceplugin", "podresources")
"""Files with services that have stubs; of the others only the messages are used."""

_PACKAGE = re.compile(r"^package (aosp_plugin\.)?", re.MULTILINE)


def generate(output: Path) -> list[Path]:
    """Write all modules below a directory, and return their paths relative to it."""
    sources = sorted((ROOT / PLUGIN).glob("*.proto"))
    _compile(ROOT, [path.relative_to(ROOT) for path in sources], output)
    with tempfile.TemporaryDirectory() as renamed:
        _compile(Path(renamed), [_rename(path, Path(renamed)) for path in sources], output)
    for path in (output / STANDIN).glob("*_pb2_grpc.py"):  # names of services are on the wire
        path.write_text(path.read_text(encoding="utf-8").replace("kubelet_standin.v1", "v1"), encoding="utf-8")
    return modules(output)


def modules(root: Path) -> list[Path]:
    """Return the generated modules below a directory, relative to it."""
    return sorted(path.relative_to(root) for api in (PLUGIN, STANDIN) for path in (root / api).glob("*_pb2*.py*"))


def _rename(path: Path, root: Path) -> Path:
    """Copy a file to the stand-in's place below ``root``, with the stand-in's package; return its relative path."""
    text = path.read_text(encoding="utf-8")
    (root / STANDIN).mkdir(parents=True, exist_ok=True)
    (root / STANDIN / path.name).write_text(_PACKAGE.sub("package kubelet_standin.", text), encoding="utf-8")
    return STANDIN / path.name


def _compile(root: Path, sources: list[Path], output: Path) -> None:
    tools = Path(sys.executable).parent
    for path in sources:
        kinds = ["python", "mypy", *(("grpc_python", "mypy_grpc") if path.stem in SERVICES else ())]
        plugins = [f"--plugin={tools / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
        outputs = [f"--{kind}_out={output}" for kind in kinds]
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *plugins, *outputs, str(path)]
        subprocess.run(command, cwd=root, check=True)


if __name__ == "__main__":
    generate(ROOT)
