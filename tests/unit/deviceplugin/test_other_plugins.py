"""Which plugin of a resource has taken over, from scan to scan."""

from __future__ import annotations

import asyncio
from typing import Any

from aosp_plugin.framework.deviceplugin.other_plugins import OtherPlugins
from aosp_plugin.framework.sockets import OtherPlugin
from aosp_plugin.framework.timings import Timings


class Directory:
    """What each scan finds, in place of a supervisor; then no scan ends."""

    registered_endpoint = "plugin-1-100.sock"

    def __init__(self, *found: OtherPlugin) -> None:
        self._found = list(found)
        self.directory_changed, self.view_due, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def other_plugins(self) -> tuple[OtherPlugin, ...]:
        """Return the next plugin that was there."""
        if not self._found:
            self.ended.set()
            await asyncio.Event().wait()
        return (self._found.pop(0),)


async def test_a_plugin_that_has_taken_over_may_register_again() -> None:
    """The earlier one would update the host again, and send no list all the same."""
    new = OtherPlugin("plugin-2-300.sock", 300, 0, registered=False)
    directory: Any = Directory(OtherPlugin("plugin-2-200.sock", 200, 0, registered=True), new, new, new)
    calls: list[object] = []
    plugins = OtherPlugins(
        directory,
        reregister=calls.append,
        override=calls.append,
        earlier_ended=lambda: calls.append("ended"),
        timings=Timings(retry=0.0, recheck=0.0),
    )
    running = asyncio.create_task(plugins.run())
    await directory.ended.wait()
    running.cancel()
    assert calls == [True]
