"""Items: another plugin of the same resource on the node starts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.common.report import say
from tests.e2e.kubelet.gaps import GapWatch
from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.plugins import configuration, sockets
from tests.e2e.kubelet.pods import RESOURCE
from tests.e2e.kubelet.probe import Probe, healthy
from tests.e2e.kubelet.processes import Daemon
from tests.e2e.kubelet.standalone import PLUGINS
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.kubelet.node import Node

HEALED_WITHIN = 90.0
"""Seconds from the end of the other plugin until all devices are allocatable again."""

SUCCEEDED_WITHIN = 1.0
"""Seconds from the end of a plugin until the devices of its successor, which is registered, are allocatable again."""

_FIRST = "127.0.0.1:9478"
_SECOND = "127.0.0.1:9479"

item = Items()


def _heals(node: Node, end: Callable[[], None]) -> None:
    """Check that the kubelet has the plugin's devices again after the end of the other plugin.

    Before 1.37 it loses all devices. Since 1.37 it keeps the list of the other plugin until the next message.
    """
    plugin = node.plugin.identity()
    registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
    end()
    if node.kubelet.behaviour.identifies_by_name:
        until(lambda: not node.kubelet.allocatable(RESOURCE), "the kubelet has lost the devices", seconds=2)
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "Register", seconds=HEALED_WITHIN)
    until(lambda: node.kubelet.allocatable(RESOURCE) == node.devices, "the devices are back", seconds=HEALED_WITHIN)
    with node.running_with(1):
        pass
    assert node.plugin.identity() == plugin, "the plugin has restarted"
    total = len(node.devices)
    until(lambda: f"{total} of {total} healthy devices allocatable" in _readiness(), "/readyz has the kubelet's number")


def _readiness() -> str:
    """Return the body of /readyz."""
    try:
        with urllib.request.urlopen(f"http://{_FIRST}/readyz", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def _ready(address: str) -> bool:
    """Return whether the plugin with this address is ready: the kubelet has its devices."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError:
        return False


@contextlib.contextmanager
def _second() -> Iterator[Daemon]:
    """Return another plugin of the resource, not started; kill it if it runs at the end."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.yaml")
        config.write_text(configuration())
        program = str(Path(sys.executable).with_name("aosp-plugin"))
        command = [program, "serve", f"--config={config}", f"--listen={_SECOND}"]
        second = Daemon("second plugin", command, Path(directory, "plugin.log"))
        try:
            yield second
        finally:
            if second.running:
                second.end(signal.SIGKILL)


@item("A second plugin of the resource registers and ends: the first one reports it, and heals the kubelet in 90 s")
def second_leaves(node: Node) -> None:
    with _second() as second:
        registered = node.kubelet.metric(REGISTRATIONS, RESOURCE)
        second.start()
        until(lambda: node.kubelet.metric(REGISTRATIONS, RESOURCE) > registered, "the second plugin registers")
        until(lambda: "another plugin of this resource runs on this node" in _readiness(), "/readyz names it")
        assert f"(process {second.pid})" in _readiness(), _readiness()
        _heals(node, lambda: _end(second))
        assert len(sockets()) == 1, f"sockets: {sockets()}"


def _end(second: Daemon) -> None:
    code = second.end(signal.SIGTERM)
    assert code == 0, f"the exit code of the second plugin is {code}"


@item("An earlier plugin of the resource ends, as in a rolling update with maxSurge: the later one has the devices")
def successor_takes_over(node: Node) -> None:
    """Kubelets before 1.37 disconnect the later plugin, too, which registers again at once.

    Like a rolling update, it ends a plugin when the later one is ready. If the kubelet is still connecting to that one,
    it may drop it without a call of ListAndWatch, and the plugin waits 10 s for the call before it registers again.
    """
    with _second() as second:
        second.start()
        until(lambda: _ready(_SECOND), "the second plugin is ready")
        until(
            lambda: "another plugin of this resource runs on this node" in _readiness(), "/readyz names the other one"
        )
        with _short_gap(node):
            node.plugin.interrupt(signal.SIGTERM)  # and it registers later than the second one
            until(lambda: "another plugin of this resource runs on this node" in _readiness(), "/readyz names it again")
            until(lambda: _ready(_FIRST), "the first plugin is ready")
        with _short_gap(node):
            _end(second)
            until(lambda: "another plugin of this resource" not in _readiness(), "/readyz no longer names it")
        with node.running_with(1):
            pass


@contextlib.contextmanager
def _short_gap(node: Node) -> Iterator[None]:
    """Check that the kubelet has no devices for a short time only; since 1.37 it always has them."""
    watch = GapWatch(node.kubelet.daemon.log, RESOURCE)
    yield
    node.wait_allocatable(node.devices)
    gaps = watch.gaps()
    say(f"#   the kubelet had no devices for {', '.join(f'{gap * 1000:.0f} ms' for gap in gaps) or 'no time'}")
    assert len(gaps) == int(node.kubelet.behaviour.identifies_by_name), f"times without devices: {gaps}"
    assert all(gap < SUCCEEDED_WITHIN for gap in gaps), f"{gaps} s without devices"


@item("A program other than this plugin registers the resource and ends: the plugin heals the kubelet in 90 s")
def foreign_leaves(node: Node) -> None:
    asyncio.run(_foreign_leaves(node))


async def _foreign_leaves(node: Node) -> None:
    foreign = Probe(str(PLUGINS), RESOURCE, healthy("x"), socket="foreign.sock")
    loop = asyncio.get_running_loop()

    def end() -> None:
        asyncio.run_coroutine_threadsafe(foreign.stop(), loop).result()

    async with foreign:
        assert not await foreign.register()
        await asyncio.to_thread(node.wait_allocatable, {"x"})
        await asyncio.to_thread(_heals, node, end)
