"""``aosp-plugin`` on a machine without binder: a tmpfs is mounted in place of each phone's binderfs.

All system calls of the mounts are real; what binderfs itself does is missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aosp_plugin.__main__ import main
from tests.tmpfs_binderfs import Mounts

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        Mounts(Path("/run/phones"), patch)
        main()
