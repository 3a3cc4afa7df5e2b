"""Bytes to a plugin that runs, on its socket: as a request of an RPC, or as whatever a connection may begin with.

Each request is answered with a documented code, and the kubelet's stream goes on. What hypothesis makes has to hold the
same in ``tests/integration/test_any_request.py``.
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
    from tests.served import DOCUMENTED, ServedPlugin
    from tests.support import Nodes

RPCS: Final = ("GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "PreStartContainer")
"""What an input's first byte chooses from; any other is of a connection."""

LOOKED_AT: Final = 1000
"""Inputs after which the kubelet's stream is looked at: a node comes and goes."""


class Wire:
    """The plugin, and what is checked with each input."""

    def __init__(self, served: ServedPlugin) -> None:
        self._served = served
        self._count = itertools.count(1)

    def check(self, data: bytes) -> None:
        """Send bytes. Raises AssertionError where what comes of it should not."""
        choice, rest = data[:1], data[1:]
        if choice and choice[0] < len(RPCS):
            code, _, error = self._served.run(self._served.call(RPCS[choice[0]], rest))
            assert code in DOCUMENTED, f"{code}: {error}"
            assert bool(error) == (code != "OK"), f"{code}: {error}"
        else:
            self._served.run(self._served.send_raw(rest))
        if next(self._count) % LOOKED_AT == 0:
            self._served.check_stream()


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        wire = Wire(ServedPlugin(runner, Nodes(Path(tempfile.mkdtemp()) / "dev"), tempfile.mkdtemp()))
        atheris.Setup(sys.argv, wire.check)
        atheris.Fuzz()
