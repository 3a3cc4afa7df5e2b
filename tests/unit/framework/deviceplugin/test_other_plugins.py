"""Which plugin of a resource has taken over, from scan to scan of the kubelet's directory."""

import asyncio
from typing import Any

import pytest

from aosp_plugin.framework.conditions import SECOND_PLUGIN
from aosp_plugin.framework.deviceplugin.supervisor import OtherPlugins
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.sockets import OtherPlugin
from aosp_plugin.framework.timing import Timings

OWN = "plugin-1-100.sock"
LATER = OtherPlugin("plugin-2-200.sock", 200, 0, registered=True)
LATER_AGAIN = OtherPlugin("plugin-2-300.sock", 300, 0, registered=False)
HANGING = OtherPlugin("plugin-3-300.sock", 300, 0, registered=False)


class Scans:
    """The plugin's own socket and what each scan finds, in place of a supervisor; then no scan ends."""

    def __init__(self, *scans: tuple[str, OtherPlugin]) -> None:
        self._scans = list(scans)
        self.directory_changed, self.view_due, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.registered_endpoint = ""

    def silence(self) -> None:
        """Do nothing."""

    def reregister(self, loss: Loss) -> None:
        """Do nothing."""

    async def other_plugins(self) -> tuple[tuple[OtherPlugin, ...], list[str]] | None:
        """Return the next plugin that was there; None at a registration, which the scan notices afterwards."""
        if not self._scans:
            self.ended.set()
            await asyncio.Event().wait()
        self.directory_changed.set()
        own, other = self._scans[0]
        if own != self.registered_endpoint:
            self.registered_endpoint = own
            return None
        del self._scans[0]
        return (other,), []


@pytest.mark.parametrize(
    ("scans", "expected"),
    [
        pytest.param([(OWN, LATER), *[(OWN, LATER_AGAIN)] * 5], [(True, OWN)], id="the later one registers again"),
        pytest.param(
            [(OWN, LATER), *[(OWN, HANGING)] * 3, ("", HANGING), ("plugin-1-400.sock", HANGING)],
            [(True, OWN), (False, "")],
            id="the later one ends, and a third one hangs",
        ),
    ],
)
async def test_a_plugin_leaves_the_host_alone_until_it_registers_again(
    scans: list[tuple[str, OtherPlugin]], expected: list[tuple[bool, str]]
) -> None:
    """Until then, it sends no lists: two plugins would update the host, and the kubelet has neither's devices."""
    directory: Any = Scans(*scans)
    calls: list[tuple[bool, str]] = []

    def pause_updates(paused: bool) -> None:  # noqa: FBT001 - a callback
        calls.append((paused, directory.registered_endpoint))

    runtime = Runtime(timings=Timings(retry=0.0, recheck=0.0))
    plugins = OtherPlugins(
        directory,
        "example.com/a",
        runtime,
        pause_updates=pause_updates,
        earlier_ended=lambda: None,
    )
    running = asyncio.create_task(plugins.run())
    await directory.ended.wait()
    running.cancel()
    assert calls == expected
    problems = runtime.conditions.of("example.com/a")
    assert [each.kind.blocks for each in problems if each.kind is SECOND_PLUGIN] == [False], "a rollout would not end"
