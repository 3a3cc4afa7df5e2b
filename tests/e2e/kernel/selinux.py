"""A policy of SELinux with one type, for the boot ``android-permissive``: built on the host, loaded in the guest."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.cache import cached, key
from tests.e2e.common.report import say
from tests.e2e.kernel.parts import HERE

BOOT: Final = "android-permissive"
CONTEXT: Final = "any_u:any_r:any_t"
"""What the policy gives to all processes."""
_SOURCE: Final = HERE / "selinux.conf"
_POLICY: Final = "policy"
_VERSION: Final = "31"
"""Of the binary format; kernels read older ones."""
_MOUNT: Final = Path("/sys/fs/selinux")


def build() -> Path:
    """Return the directory with the policy. Raises MissingError and BrokenError."""
    packages.install(("checkpolicy",))
    return cached(f"selinux-{key([_SOURCE, _VERSION])}", _build)


def _build(directory: Path) -> None:
    options = ("-U", "allow", "-c", _VERSION, "-o", str(directory / _POLICY))
    packages.command("checkpolicy", *options, str(_SOURCE), error=packages.BrokenError)


def load(directory: Path) -> None:
    """Load the policy into the guest's kernel, and check that it is in force and permissive."""
    subprocess.run(("mount", "-t", "selinuxfs", "selinuxfs", str(_MOUNT)), check=True)
    (_MOUNT / "load").write_bytes((directory / _POLICY).read_bytes())
    context = Path("/proc/self/attr/current").read_text().rstrip("\0\n")
    assert context == CONTEXT, context
    enforcing = (_MOUNT / "enforce").read_text()
    assert enforcing == "0", enforcing
    say(f"SELinux: policy of one type, context {context}, enforcing {enforcing}")
