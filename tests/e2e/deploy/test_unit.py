"""The systemd units and the drop-in, checked with systemd-analyze."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.deploy.parts import PHONES, PROGRAM, SYSTEMD, UNIT, run

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("systemd")]

DROP_IN: Final = (SYSTEMD / "recreate.conf").read_text()
MOST_EXPOSED: Final = 2.0
"""The limit of `systemd-analyze security`, of 10. The service requires uid 0, /dev, /proc and a port."""


@pytest.mark.parametrize(
    ("unit", "extra", "drop_in", "reported"),
    [
        (UNIT, "", "", ""),
        (PHONES, "", "", ""),
        (UNIT, "", DROP_IN, ""),
        (UNIT, "\n[Service]\nProtectSystems=strict\n", "", "ProtectSystems"),
        (UNIT, "", "[Service]\nReadWritePath=/run\n", "ReadWritePath"),
    ],
    ids=("plugin", "phones", "plugin with its drop-in", "unknown setting", "unknown setting in the drop-in"),
)
def test_systemd_reports_nothing_but_unknown_settings(
    unit: str, extra: str, drop_in: str, reported: str, tmp_path: Path
) -> None:
    """It checks a copy of the unit whose program exists."""
    text = (SYSTEMD / unit).read_text()
    assert PROGRAM in text
    (tmp_path / unit).write_text(text.replace(PROGRAM, shutil.which("true") or "") + extra)
    if drop_in:
        (tmp_path / f"{unit}.d").mkdir()
        (tmp_path / f"{unit}.d" / "recreate.conf").write_text(drop_in)
    command = ("systemd-analyze", "verify", "--man=no", str(tmp_path / unit))
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    messages = result.stdout + result.stderr
    assert reported in messages
    assert bool(reported) == bool(messages), messages


def test_the_exposure_of_the_unit_is_at_most_2_of_10() -> None:
    output = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(SYSTEMD / UNIT))
    (exposure,) = re.findall(r"Overall exposure level for .*: ([0-9.]+)", output)
    assert float(exposure) <= MOST_EXPOSED, output
