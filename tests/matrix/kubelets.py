"""The column of versions of the kubelet."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

_NOTE: Final = "registration, pods, restarts, podresources, CDI, and the scenarios of the stand-in kubelet"


def _kubelet(version: str, *options: str, note: str) -> Cell:
    """Return a cell that runs all items."""
    command = ("tests.e2e.kubelet", *options)
    note = f"{_NOTE}; {note}"
    return Cell(name=version, title=version, command=command, expect={"kubelet": f"{version}."}, note=note)


CELLS: Final = (
    _kubelet("1.25", "--kubelet", "1.25", note="not what this version lacks: CDI in the CRI's field, DRA"),
    _kubelet("1.28", "--kubelet", "1.28", note="with the feature gate of CDI; not sidecars, DRA"),
    _kubelet("1.31", "--kubelet", "1.31", note="not DRA"),
    _kubelet("1.34", note="DRA drivers"),
    _kubelet("1.36", "--kubelet", "1.36", note="DRA drivers"),
    _kubelet("1.37", "--kubelet", "1.37", note="DRA drivers"),
    Cell(
        name="dra-before-1.34",
        title="before 1.34, `api: dra`",
        refused="[dra.md](dra.md): the API `resource.k8s.io/v1` is served since 1.34",
    ),
    Cell(name="windows", title="Windows nodes", refused="there is no binder"),
)
