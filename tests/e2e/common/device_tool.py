"""The command that creates, lists and deletes binder devices on a test host."""

import sys
from pathlib import Path
from typing import Final

COMMAND: Final = (sys.executable, "-I", "-S", str(Path(__file__).resolve().parents[3] / "hack/binder_devices.py"))
"""Words of the command, without installed packages."""

BINDERFS: Final = "/run/aosp-binderfs/test-devices"
"""Where it mounts its binderfs."""
