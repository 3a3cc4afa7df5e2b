"""The column of container runtimes and OCI runtimes, each with a real kubelet."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

_OLD: Final = "`hostUsers: false` is refused by the kubelet, as with all versions before 2.0"
_NEW: Final = "CDI, and `hostUsers: false` with CDI: [limits](phones.md#cdi)"


def _cell(container_runtime: str, oci_runtime: str, title: str, *versions: str, note: str, cheap: bool = False) -> Cell:
    """Return a cell; ``versions`` are the beginnings of those of the container runtime and of the OCI runtime."""
    names = {"cri-o": "CRI-O"}.get(container_runtime, "containerd"), oci_runtime
    return Cell(
        name=f"{container_runtime}-{oci_runtime}",
        title=title,
        command=("tests.e2e.kubelet", "--runtime", f"{container_runtime}+{oci_runtime}"),
        expect=dict(zip(names, versions, strict=True)),
        note=note,
        cheap=cheap,
        hours=1,
    )


CELLS: Final = (
    _cell("containerd-1.6", "runc", "containerd 1.6, runc 1.1 (Debian 12)", "1.6.", "1.1.5", note=f"no CDI; {_OLD}"),
    _cell(
        *("containerd-1.6", "crun", "containerd 1.6, crun 1.8 (Debian 12)", "1.6.", "1.8."),
        note=f"no CDI; {_OLD}",
        cheap=True,
    ),
    _cell(
        *("containerd-1.7", "runc", "containerd 1.7 (Debian 13), runc 1.1", "1.7.", "1.1.5"),
        note=f"CDI; {_OLD}",
        cheap=True,
    ),
    _cell(
        *("containerd-1.7", "crun", "containerd 1.7, crun 1.21 (Debian 13)", "1.7.", "1.21"),
        note=f"CDI; {_OLD}",
        cheap=True,
    ),
    _cell("containerd-2.1", "runc", "containerd 2.1, runc 1.3", "2.1.", "1.3.", note=_NEW),
    _cell("containerd-2.1", "crun", "containerd 2.1, crun 1.21 (Debian 13)", "2.1.", "1.21", note=_NEW),
    _cell("cri-o", "runc", "CRI-O 1.34, runc 1.3", "1.34.", "1.3.", note=_NEW),
    _cell("cri-o", "crun", "CRI-O 1.34, crun 1.21 (Debian 13)", "1.34.", "1.21", note=_NEW),
    Cell(
        name="containerd-1.6-cdi",
        title="CDI with containerd 1.6",
        refused="it starts containers without any device and says nothing: "
        "[runbook](runbook.md#the-container-has-no-binder-device-at-all)",
    ),
    Cell(
        name="youki",
        title="containerd 2.1, youki 0.7",
        not_run="not completely: the plugin's pod does not start, because youki 0.7.0 does not know the root "
        "propagation `rslave` (`UnknownRootfsPropagation`), which containerd requests for its `mountPropagation`. With "
        "the plugin as a process, the chapters `process`, `phones` and `users-refused` passed in November 2026",
    ),
    Cell(name="cri-dockerd", title="Docker with cri-dockerd", not_run="nothing known about it"),
    Cell(
        name="kata",
        title="Kata Containers, gVisor",
        refused="their containers do not use the host's kernel, and so not its binder driver",
    ),
)
