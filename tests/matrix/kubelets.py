"""The column of versions of the kubelet."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CELLS: Final = (
    Cell(
        name="dra-before-1.34",
        title="before 1.34, `api: dra`",
        refused="[dra.md](dra.md): the API `resource.k8s.io/v1` is served since 1.34",
    ),
    Cell(name="windows", title="Windows nodes", refused="there is no binder"),
)
