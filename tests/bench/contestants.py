"""The plugins to measure: their command lines, and the measures that apply to them."""

import re
import shlex
import sys
from collections.abc import Mapping
from typing import NamedTuple

OURS = "aosp-plugin"
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
    """Return the contestant for ``NAME=COMMAND``, which may begin with variables as in a shell. Raises ValueError.

    With PYTHONSAFEPATH=1 and PYTHONPATH, ``python -m aosp_plugin`` is the plugin of another checkout.
    """
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise ValueError(f"{text!r} is not NAME=COMMAND")
    return Contestant(name, command)
