"""The plugins to measure: their command lines, and the measures that apply to them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS = "aosp-plugin"
BEFORE = "before"
EMPTY = "empty handler"


class Contestant(NamedTuple):
    """A plugin to measure."""

    name: str
    command: str
    """Environment variables as VARIABLE=VALUE, and the command line. {devices} is the device directory, {kubelet} the
    kubelet's plugin directory, {pod_resources} the socket of its podresources API, {port} a free port for HTTP, and
    {verify} the type of the devices: "char" or "file"."""
    idle: bool = False
    """Whether the plugin only lists its devices once; it is excluded from measures of changes."""

    def command_line(self, values: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
        """Return environment variables and arguments, with the values of the words in braces."""
        parts = shlex.split(self.command)
        for word, value in values.items():  # not str.format, because flags of a plugin may contain braces
            parts = [part.replace(f"{{{word}}}", value) for part in parts]
        environment = {}
        while parts and re.match(r"[A-Za-z_]\w*=", parts[0]):
            name, _, value = parts.pop(0).partition("=")
            environment[name] = value
        return environment, parts


_PYTHON = shlex.quote(sys.executable)
_SERVE = (
    "AOSP_PLUGIN_POD_RESOURCES_SOCKET={pod_resources} "
    + _PYTHON
    + " -m aosp_plugin serve --device-dir {devices} --kubelet-dir {kubelet} --verify {verify} --listen 127.0.0.1:{port}"
)

PLUGIN = Contestant(OURS, _SERVE)
"""This project's plugin with everything on: metrics and status page, and the podresources API."""

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


def before(checkout: str) -> Contestant:
    """Return this project's plugin from another checkout. Raises ValueError if that has no plugin.

    PYTHONSAFEPATH is necessary because ``python -m`` prefers the current directory to PYTHONPATH.
    """
    checkout = os.path.realpath(checkout)
    environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": checkout}
    command = [sys.executable, "-c", "import aosp_plugin; print(aosp_plugin.__file__)"]
    result = subprocess.run(  # noqa: S603 - our own
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if not result.stdout.startswith(checkout + os.sep):
        raise ValueError(f"{checkout} has no package aosp_plugin")
    prefix = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return Contestant(BEFORE, f"{prefix} {_SERVE}")
