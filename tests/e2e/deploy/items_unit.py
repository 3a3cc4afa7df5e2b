"""The systemd unit and its drop-in, as systemd reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.deploy.parts import DEPLOY, run

SYSTEMD = DEPLOY / "systemd"
UNIT: Final = "aosp-device-plugin.service"
PROGRAM: Final = "/opt/aosp-device-plugin/bin/aosp-plugin"
MOST_EXPOSED: Final = 2.0
"""Of 10, by `systemd-analyze security`; below is OK, where uid 0, /dev, /proc and a port are needed."""


def verify() -> None:
    """`systemd-analyze verify` has nothing to say of the unit, with its drop-in and without."""
    assert _said_of() == ""
    assert _said_of(dropped_in=(SYSTEMD / "provision.conf").read_text()) == ""


def verify_refuses() -> None:
    """Counter-proof: a setting that there isn't is told, in the drop-in as well."""
    assert "ProtectSystems" in _said_of("\n[Service]\nProtectSystems=strict\n")
    assert "ReadWritePath" in _said_of(dropped_in="[Service]\nReadWritePath=/run\n")


def _said_of(more: str = "", dropped_in: str = "") -> str:
    """Return what systemd says of a copy of the unit whose program exists."""
    with tempfile.TemporaryDirectory() as directory:
        text = (SYSTEMD / UNIT).read_text()
        assert PROGRAM in text, f"the program is not {PROGRAM}"
        unit = Path(directory, UNIT)
        unit.write_text(text.replace(PROGRAM, shutil.which("true") or "") + more)
        if dropped_in:
            Path(directory, f"{UNIT}.d").mkdir()
            Path(directory, f"{UNIT}.d", "provision.conf").write_text(dropped_in)
        command = ("systemd-analyze", "verify", "--man=no", str(unit))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr


def exposure() -> None:
    """`systemd-analyze security` calls its exposure OK: 2.0 of 10 at the most."""
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(SYSTEMD / UNIT))
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= MOST_EXPOSED, f"it is {found[1]}"


ITEMS = (verify, verify_refuses, exposure)
