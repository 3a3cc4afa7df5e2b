"""In the guest: which kernel, driver, cgroup version and runtimes it has, as they say themselves."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.kernel import confinement
from tests.e2e.kernel.containers import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines() -> Iterator[str]:
    """Yield ``version NAME: VALUE`` for each component that decides what the items find."""
    kernel = os.uname()
    debian = re.search(r" Debian (\S+)", kernel.version)
    yield f"version Linux: {debian[1] if debian else kernel.release}"
    yield f"version machine: {kernel.machine}"
    yield f"version binder driver: {_driver()}"
    yield f"version cgroup: {'v2' if os.path.exists('/sys/fs/cgroup/cgroup.controllers') else 'v1'}"
    if confinement.CONFINED:
        loaded = Path("/sys/kernel/security/apparmor/profiles").read_text().splitlines()
        yield f"version AppArmor: {', '.join(sorted(loaded, reverse=True))}"
    for runtime in RUNTIMES:
        output = subprocess.run((runtime, "--version"), stdout=subprocess.PIPE, text=True, check=True).stdout
        yield f"version {runtime}: {output.split()[2]}"


def _driver() -> str:
    """Return the language of the binder driver; the C driver is always a module here."""
    if "rust_binder" in Path("/proc/devices").read_text():
        return "Rust"
    return "C" if os.path.exists("/sys/module/binder_linux") else "unknown"
