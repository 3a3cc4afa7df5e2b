"""``aosp-plugin`` on a machine without binder: a tmpfs is mounted in place of each phone's binderfs.

All system calls of the mounts are real; what binderfs itself does is missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from aosp_plugin.__main__ import main
from aosp_plugin.binder.provision import provisioner_socket
from tests.tmpfs_binderfs import Mounts

if TYPE_CHECKING:
    import pytest


if __name__ == "__main__":
    # pytest itself would add to the memory that is measured.
    Mounts(Path("/run/phones"), cast("pytest.MonkeyPatch", SimpleNamespace(setattr=setattr)))
    provisioner_socket.PROVISIONER_SOCKET = os.environ.get("PROVISIONER_SOCKET", provisioner_socket.PROVISIONER_SOCKET)
    main()
