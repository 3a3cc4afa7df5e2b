"""Items: another plugin of the same resource on the node starts and ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.plugins import configuration, sockets
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.processes import Daemon
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.kubelet.node import Node

HEALED_WITHIN: Final = 90.0
"""Seconds from the end of the other plugin until all devices are allocatable again."""

item = Items()


def _readiness() -> str:
    """Return the body of /readyz."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:9478/readyz", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


@contextlib.contextmanager
def _second() -> Iterator[Daemon]:
    """Run another plugin of the resource while the context lasts; kill it if it runs at the end."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.yaml")
        config.write_text(configuration())
        program = str(Path(sys.executable).with_name("aosp-plugin"))
        command = [program, "serve", f"--config={config}", "--listen=127.0.0.1:9479"]
        second = Daemon("second plugin", command, Path(directory, "plugin.log"))
        second.start()
        try:
            yield second
        finally:
            if second.running:
                second.end(signal.SIGKILL)


@item("A second plugin of the resource registers and ends: the first one reports it, and heals the kubelet in 90 s")
def second_leaves(node: Node) -> None:
    """Before 1.37 the kubelet loses all devices. Since 1.37 it keeps the second one's list until the next message."""
    plugin, registered = node.plugin.identity(), node.kubelet.metric(REGISTRATIONS, RESOURCE)
    with _second() as second:
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "the second plugin registers")
        until(lambda: "another plugin of this resource runs on this node" in _readiness(), "/readyz names it")
        assert f"(process {second.pid})" in _readiness(), _readiness()
        registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
        code = second.end(signal.SIGTERM)
        assert code == 0, f"the exit code of the second plugin is {code}"
    if node.kubelet.behaviour.identifies_by_name:
        until(lambda: not node.kubelet.allocatable(RESOURCE), "the kubelet has lost the devices", seconds=2)
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "Register", seconds=HEALED_WITHIN)
    until(lambda: node.kubelet.allocatable(RESOURCE) == node.devices, "the devices are back", seconds=HEALED_WITHIN)
    with node.running_with(1):
        pass
    assert node.plugin.identity() == plugin, "the plugin has restarted"
    total = len(node.devices)
    until(lambda: f"{total} of {total} healthy devices allocatable" in _readiness(), "/readyz has the kubelet's number")
    assert len(sockets()) == 1, f"sockets: {sockets()}"
