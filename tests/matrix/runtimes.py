"""The column of container runtimes and OCI runtimes."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CELLS: Final = (
    Cell(
        name="containerd-1.6-cdi",
        title="CDI with containerd 1.6",
        refused="it starts containers without any device and says nothing: "
        "[runbook](runbook.md#the-container-has-no-binder-device-at-all)",
    ),
    Cell(name="cri-dockerd", title="Docker with cri-dockerd", not_run="nothing known about it"),
    Cell(
        name="kata",
        title="Kata Containers, gVisor",
        refused="their containers do not use the host's kernel, and so not its binder driver",
    ),
)
