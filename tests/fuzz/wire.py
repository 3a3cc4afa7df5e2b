"""Fuzz the socket of a running plugin: bytes as the request of an RPC, or as the start of a connection.

Each response has a documented code, and the kubelet's stream stays open.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["aosp_plugin"]):
    from tests.fuzz.served import DOCUMENTED, ServedPlugin
    from tests.support import DeviceDirectory

RPCS: Final = ("GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "PreStartContainer")
"""The RPCs that an input's first byte selects; other values select a raw connection."""

STREAM_CHECK: Final = 1000
"""The number of inputs between checks of the kubelet's stream."""


class Wire:
    """A running plugin and the check of an input."""

    def __init__(self, served: ServedPlugin) -> None:
        self._served = served
        self._count = itertools.count(1)

    def check(self, data: bytes) -> None:
        """Send an input. Raises AssertionError for a wrong response."""
        choice, rest = data[:1], data[1:]
        if choice and choice[0] < len(RPCS):
            code, _, error = self._served.run(self._served.call(RPCS[choice[0]], rest))
            assert code in DOCUMENTED, f"{code}: {error}"
            assert bool(error) == (code != "OK"), f"{code}: {error}"
        else:
            self._served.run(self._served.send_raw(rest))
        if next(self._count) % STREAM_CHECK == 0:
            self._served.check_stream()


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        wire = Wire(ServedPlugin(runner, DeviceDirectory(Path(tempfile.mkdtemp()) / "dev"), tempfile.mkdtemp()))
        atheris.Setup(sys.argv, wire.check)
        atheris.Fuzz()
