"""The ListAndWatch streams of one registration, each in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import call_in_loop
from aosp_plugin.framework.deviceplugin.request_threads import leave_place
from aosp_plugin.framework.observer import RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)


class _Stream:
    """One stream."""

    def __init__(self) -> None:
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self.first = False
        """Whether it was the first one of the registration. For the event loop."""

    def wake(self) -> None:
        """Let ``wait`` return, if it waits now, and otherwise the next time. For any thread."""
        if self._wakes.empty():  # a client that does not read would otherwise collect one for each snapshot
            self._wakes.put(None)

    def wait(self) -> None:
        """Wait until something may have to be done."""
        self._wakes.get()


class Streams:
    """Sends the snapshots of ``inventory`` on any number of streams.

    A client that does not read delays nothing but its own stream, whose thread waits for it in gRPC.
    """

    def __init__(self, resource_name: str, inventory: Inventory, observer: Observer) -> None:
        """To be called in the event loop, in which the observer is then called."""
        self._resource_name = resource_name
        self._inventory = inventory
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._open: set[_Stream] = set()
        self._finished = False
        self._silent = False
        self.opened = asyncio.Event()
        """Set when ListAndWatch was called for the first time."""
        self.ended = asyncio.Event()
        """Set when the first stream has ended unexpectedly."""

    def silence(self) -> None:
        """Send no more lists on streams that have one."""
        self._silent = True

    def finish(self) -> None:
        """End all streams. To be called in the event loop."""
        self._finished = True
        for stream in self._open:
            stream.wake()

    def serve(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield the current snapshot and each newer one, until the client or ``finish`` ends the stream."""
        leave_place()
        RESOURCE.set(self._resource_name)
        stream = _Stream()
        call_in_loop(self._loop, self._opened, stream)
        if not context.add_callback(partial(self._end, stream)):
            self._end(stream)
        revision = 0
        while not self._finished and context.is_active():
            snapshot = self._inventory.snapshot
            if snapshot.revision <= revision or (revision and self._silent):
                stream.wait()
                continue
            call_in_loop(self._loop, partial(self._observer.sent, len(snapshot.message), first=not revision))
            LOG.debug("devices sent", extra={"revision": snapshot.revision, "bytes": len(snapshot.message)})
            yield snapshot.message
            revision = snapshot.revision

    def _end(self, stream: _Stream) -> None:
        """Handle the end of a stream, whichever side has ended it. gRPC calls it in a thread of the server."""
        stream.wake()
        call_in_loop(self._loop, self._ended, stream)

    def _opened(self, stream: _Stream) -> None:
        self._open.add(stream)
        self._inventory.listeners.add(stream.wake)
        stream.wake()  # for what happened before
        stream.first = not self.opened.is_set()
        self.opened.set()
        self._observer.stream_opened()

    def _ended(self, stream: _Stream) -> None:
        self._open.discard(stream)
        self._inventory.listeners.discard(stream.wake)
        self._observer.stream_closed()
        if stream.first and not self._finished:
            self.ended.set()
