"""The column of processor architectures: arm64 in software emulation, x86-64 being that of all other cells."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell
from tests.matrix.kernels import CORE

_ARM64: Final = {"machine": "aarch64", "Linux": "6.1.", "binder driver": "C"}

CELLS: Final = (
    Cell(
        name="arm64",
        title="arm64, emulated: Debian 12",
        command=("tests.e2e.kernel", "--arch", "arm64", "--items", "core"),
        expect=_ARM64,
        note=CORE,
    ),
    Cell(name="others", title="others, and 32-bit user space", not_run="nothing known about them"),
)
