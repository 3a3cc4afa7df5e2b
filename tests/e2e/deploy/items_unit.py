"""Items: the systemd unit and its drop-in, checked with systemd-analyze."""

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
PHONES: Final = "aosp-phones.service"
PROGRAM: Final = "/usr/local/bin/aosp-plugin"
MOST_EXPOSED: Final = 2.0
"""The limit of `systemd-analyze security`, of 10. The service requires uid 0, /dev, /proc and a port."""


def verify() -> None:
    """`systemd-analyze verify` reports nothing for the units, and nothing for the plugin's with its drop-in."""
    assert _messages() == ""
    assert _messages(name=PHONES) == ""
    assert _messages(drop_in=(SYSTEMD / "recreate.conf").read_text()) == ""


def verify_refuses() -> None:
    """Counter-example: `systemd-analyze verify` reports an unknown setting, in the drop-in too."""
    assert "ProtectSystems" in _messages("\n[Service]\nProtectSystems=strict\n")
    assert "ReadWritePath" in _messages(drop_in="[Service]\nReadWritePath=/run\n")


def _messages(extra: str = "", drop_in: str = "", name: str = UNIT) -> str:
    """Return the messages of systemd-analyze for a copy of a unit whose program exists."""
    with tempfile.TemporaryDirectory() as directory:
        text = (SYSTEMD / name).read_text()
        assert PROGRAM in text, f"the program is not {PROGRAM}"
        unit = Path(directory, name)
        unit.write_text(text.replace(PROGRAM, shutil.which("true") or "") + extra)
        if drop_in:
            Path(directory, f"{UNIT}.d").mkdir()
            Path(directory, f"{UNIT}.d", "recreate.conf").write_text(drop_in)
        command = ("systemd-analyze", "verify", "--man=no", str(unit))
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return result.stdout + result.stderr


def exposure() -> None:
    """`systemd-analyze security` rates the unit's exposure at most 2.0 of 10."""
    output = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(SYSTEMD / UNIT))
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", output)
    assert found is not None, output
    assert float(found[1]) <= MOST_EXPOSED, f"exposure: {found[1]}"


ITEMS = (verify, verify_refuses, exposure)
