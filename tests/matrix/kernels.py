"""The column of binder kernels, each with its core set of items: the whole set takes hours in software emulation."""

from __future__ import annotations

from typing import Final

from tests.matrix.cell import Cell

CORE: Final = "the core set of items, with runc: containers, phones, fresh devices, a binderfs per phone"


def _core(name: str, title: str, expect: dict[str, str], *options: str, cheap: bool = False) -> Cell:
    """Return a cell that runs the core set in a guest with these options."""
    command = ("tests.e2e.kernel", *options, "--items", "core")
    return Cell(name=name, title=title, command=command, expect=expect, note=CORE, cheap=cheap)


def _debian(name: str, title: str, suite: str) -> Cell:
    expect = {"Linux": f"{name}.", "binder driver": "C", "cgroup": "v2"}
    return _core(name, title, expect, "--kernel", suite)


CELLS: Final = (
    _debian("5.10", "5.10 (Debian 11), C driver", "bullseye"),
    _debian("6.1", "6.1 (Debian 12), C driver", "bookworm"),
    _debian("6.12", "6.12 (Debian 13), C driver", "trixie"),
    _debian("7.2", "7.2 (Debian sid), C driver", "newest"),
    _core(
        "7.2-rust",
        "7.2 (Debian sid's source), Rust driver",
        {"Linux": "7.2.", "binder driver": "Rust", "cgroup": "v2"},
        *("--kernel", "newest-rust"),
    ),
    _core(
        "6.1-cgroup-v1",
        "6.1 (Debian 12), cgroup v1",
        {"Linux": "6.1.", "cgroup": "v1"},
        *("--cgroup", "v1"),
        cheap=True,
    ),
    _core(
        "6.1-confined",
        "6.1 (Debian 12), containerd's default seccomp filter and AppArmor profile",
        {"Linux": "6.1.", "AppArmor": "cri-containerd.apparmor.d (enforce)"},
        "--confined",
        cheap=True,
    ),
    Cell(
        name="6.1-android",
        title="6.1 (Debian 12) with SELinux: the binder userland of AOSP 14",
        command=("tests.e2e.kernel", "android"),
        expect={"Linux": "6.1."},
        note="libbinder, service managers, tools and tests of Android in containers of runc and crun",
    ),
    Cell(
        name="6.1-without-binderfs",
        title="6.1 (Debian 12), Debian's own module without binderfs: `binder_linux devices=`",
        command=("tests.e2e.kernel", "stock"),
        expect={"Linux": "6.1."},
        note="boot `stock`",
        cheap=True,
    ),
    Cell(
        name="phones-on-5.1",
        title="5.0 and 5.1, `phones`",
        refused="`fsopen(2)` and `move_mount(2)` are missing; [0004](decisions/0004-detached-mounts.md)",
    ),
    Cell(
        name="without-binder",
        title="without binder",
        refused="no devices: `AospPluginDevicesMissing`; `hack/binder_devices.py create` fails",
    ),
)
