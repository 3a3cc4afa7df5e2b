"""The column of binder kernels."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CELLS: Final = (
    Cell(
        name="phones-on-5.1",
        title="5.0 and 5.1, `phones`",
        refused="`fsopen(2)` and `move_mount(2)` are missing; [phones.md](phones.md#limits)",
    ),
    Cell(
        name="without-binder",
        title="without binder",
        refused="no devices: `AospPluginNoDevices`; `aosp-plugin nodes create` fails",
    ),
)
