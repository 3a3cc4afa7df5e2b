"""The plugins to measure: their command lines, and the measures that apply to them."""

from __future__ import annotations

import shlex
import sys
from typing import NamedTuple

OURS = "aosp-plugin"
EMPTY = "empty handler"


class Contestant(NamedTuple):
    """A plugin to measure."""

    name: str
    command: str
    """The command line; {devices} is the device directory, {kubelet} the kubelet's plugin directory, and {verify} the
    type of the devices: "char" or "file"."""
    idle: bool = False
    """Whether the plugin only lists its devices once; it is excluded from measures of changes."""

    def arguments(self, devices: str, kubelet: str, verify: str) -> list[str]:
        """Return the command line for these directories."""
        places = {"{devices}": devices, "{kubelet}": kubelet, "{verify}": verify}
        parts = shlex.split(self.command)
        for place, path in places.items():  # not str.format, because flags of a plugin may contain braces
            parts = [part.replace(place, path) for part in parts]
        return parts


_PYTHON = shlex.quote(sys.executable)

PLUGIN = Contestant(
    OURS,
    _PYTHON + " -m aosp_plugin serve --device-dir {devices} --kubelet-dir {kubelet} --verify {verify} "
    "--listen 127.0.0.1:0",
)

EMPTY_HANDLERS = tuple(
    Contestant(f"{EMPTY}, {kind}", _PYTHON + f" -m tests.bench.empty {kind} " + "{devices} {kubelet}", idle=True)
    for kind in ("asyncio", "threads")
)


def parse(text: str) -> Contestant:
    """Return the contestant for ``NAME=COMMAND``. Raises ValueError."""
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise ValueError(f"{text!r} is not NAME=COMMAND")
    return Contestant(name, command)
