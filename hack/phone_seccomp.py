"""Writes the seccomp profile for phones, deploy/seccomp/aosp-phone.json, from containerd's default profile.

``make generate GENERATE=phone_seccomp`` runs it. The default is what the Go program tests/e2e/kernel/confinement prints
for the capabilities of deploy/examples/redroid.yaml, with the containerd of tests/e2e/kubelet/containerd: after an
update of it, ``make test-deploy`` fails until the profile is written again. It requires root on Debian, and Go.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
PROFILE: Final = ROOT / "deploy/seccomp/aosp-phone.json"

REMOVED: Final = {
    "bpf": "detaches the device filter of a cgroup (BPF_PROG_DETACH); loads programs that read the kernel's memory",
    "fanotify_init": "its events have descriptors of files that others open in a file system that it shares",
    **dict.fromkeys(
        ("fsopen", "fsconfig", "fsmount", "fspick", "open_tree", "open_tree_attr", "move_mount", "mount_setattr"),
        "makes, attaches and changes mounts past the AppArmor profile, which checks mount(2)",
    ),
    **dict.fromkeys(
        ("io_uring_setup", "io_uring_enter", "io_uring_register"), "makes system calls that no seccomp filter sees"
    ),
    "open_by_handle_at": "opens files of a file system of which the container has one directory",
    "perf_event_open": "observes other processes and the kernel",
}
"""System calls that a phone must not make, with what they do; newer defaults may or may not allow them."""

_ENOSYS: Final = 38
"""Programs take it for an older kernel; util-linux falls back to mount(2) then."""
_ARM: Final = {
    "architectures": ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
    "names": ["arm_fadvise64_64", "arm_sync_file_range", "breakpoint", "cacheflush", "set_tls", "sync_file_range2"],
}
"""The names that the default filter has on arm64 (contrib/seccomp/seccomp_default.go). Runtimes ignore names of other
processors."""


def capabilities() -> list[str]:
    """Return the capabilities of a phone, such as CAP_SYS_ADMIN."""
    pod = yaml.safe_load((ROOT / "deploy/examples/redroid.yaml").read_text(encoding="utf-8"))
    (container,) = pod["spec"]["containers"]
    return [f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]]


def profile(default: dict[str, Any]) -> str:
    """Return the text of the profile, from the default filter of a container on amd64 as in the runtime spec."""
    rules = []
    for rule in default["syscalls"]:
        names = _without_removed(rule["names"])
        if names:
            rules.append({**{key: value for key, value in rule.items() if value}, "names": names})
    rules.append({"names": _ARM["names"], "action": "SCMP_ACT_ALLOW"})
    rules.append({"names": sorted(REMOVED), "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    architectures = [*default["architectures"], *_ARM["architectures"]]
    written = {"defaultAction": default["defaultAction"], "architectures": architectures, "syscalls": rules}
    return json.dumps(written, indent=2) + "\n"


def _without_removed(names: Iterable[str]) -> list[str]:
    return sorted({*names} - REMOVED.keys())


def default() -> dict[str, Any]:
    """Return containerd's default filter for a phone. Raises packages.MissingError and BrokenError."""
    from tests.e2e.kernel import parts  # noqa: PLC0415 - builds programs

    command = [str(parts.confinement()), "seccomp", *capabilities()]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> int:
    """Write the profile."""
    PROFILE.write_text(profile(default()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
