"""ListAndWatch streams whose clients do not read."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from aosp_plugin.framework.deviceplugin.streams import Streams
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.observer import NULL_OBSERVER
from tests.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable


class Context:
    """A request that stays active until the test ends it."""

    def __init__(self) -> None:
        self.active = True

    def is_active(self) -> bool:
        """Return whether the test has not ended the request."""
        return self.active

    def add_callback(self, _callback: Callable[[], None]) -> bool:
        """Accept the callback, which is not called."""
        return True


async def test_stream_that_is_not_read_remembers_one_change() -> None:
    """It collects nothing for each snapshot, and sends the newest one when its client reads again."""
    inventory = Inventory()
    inventory.publish([Device("a")])
    streams = Streams("example.com/thing", inventory, NULL_OBSERVER)
    context: Any = Context()
    sent = streams.serve(b"", context)
    next(sent)
    await asyncio.wait_for(streams.opened.wait(), PATIENCE)
    for number in range(1000):
        inventory.publish([Device(f"b{number}")])
    (stream,) = streams._open
    assert stream._wakes.qsize() == 1
    assert next(sent) == inventory.snapshot.message
    reader = threading.Thread(target=lambda: [*sent], daemon=True)
    reader.start()
    streams.finish()
    reader.join(PATIENCE)
    assert not reader.is_alive()
