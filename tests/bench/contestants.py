"""What is measured: a plugin's command line, and which of the measures it can take part in."""

from __future__ import annotations

import shlex
import sys
from typing import NamedTuple

OURS = "aosp-plugin"
EMPTY = "empty handler"


class Contestant(NamedTuple):
    """A plugin to be measured."""

    name: str
    command: str
    """With {devices}: the directory of the nodes; {kubelet}: the kubelet's plugin directory; {verify}: what kind of
    file a node is here, "char" or "file"."""
    idle: bool = False
    """Whether it lists its devices once and does nothing more: it is left out where there would be more to see."""

    def arguments(self, devices: str, kubelet: str, verify: str) -> list[str]:
        """Return the command line for these directories."""
        places = {"{devices}": devices, "{kubelet}": kubelet, "{verify}": verify}
        parts = shlex.split(self.command)
        for place, path in places.items():  # not str.format: a plugin's own flags may have braces, as JSON does
            parts = [part.replace(place, path) for part in parts]
        return parts


_PYTHON = shlex.quote(sys.executable)

PLUGIN = Contestant(
    OURS,
    _PYTHON + " -m aosp_plugin serve --device-dir {devices} --kubelet-dir {kubelet} --verify {verify} "
    "--listen 127.0.0.1:0",
)

EMPTY_HANDLERS = tuple(
    Contestant(f"{EMPTY}, {way}", _PYTHON + f" -m tests.bench.empty {way} " + "{devices} {kubelet}", idle=True)
    for way in ("asyncio", "threads")
)


def parse(text: str) -> Contestant:
    """Return the contestant that ``NAME=COMMAND`` describes. Raises ValueError."""
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise ValueError(f"{text!r} is not NAME=COMMAND")
    return Contestant(name, command)
