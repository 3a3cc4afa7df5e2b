"""Watches of the stand-in API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

from kubelet_standin.apiserver.kinds import Kind
from kubelet_standin.apiserver.statuses import StatusError
from kubelet_standin.apiserver.store import Change, Store

Object = dict[str, Any]

BEFORE_END: Final = 2.0
"""Seconds before the end of a watch in which it gets a last bookmark."""


class WatchOptions(NamedTuple):
    """What a watch was asked for."""

    kind: Kind
    matches: Callable[[Object], bool]
    revision: int | None
    """Changes after this one; None to begin with an ADDED event for each object."""
    bookmarks: bool
    seconds: float
    """After which the server ends it."""


class Watch:
    """An open watch, as a client sees it."""

    def __init__(
        self,
        options: WatchOptions,
        store: Store,
        *,
        changed: Callable[[], asyncio.Event],
        silent: Callable[[], bool],
        bookmark_interval: float,
    ) -> None:
        """Begin; ``changed`` returns the event of the server's next change, ``silent`` whether nothing may be sent."""
        self._options = options
        self._store = store
        self._changed = changed
        self._silent = silent
        self._interval = bookmark_interval
        self._seen = options.revision or 0
        self._start = max(self._seen, store.revision)
        self.ended = False
        """Set to end it as at its time limit; the server must notify it."""

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send events until the watch is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.seconds
        # As nextBookmarkTime does (apiserver/pkg/storage/cacher/cache_watcher.go).
        bookmark = min(loop.time() + self._interval, end - BEFORE_END)
        if self._options.revision is None:
            for item in self._store.list(self._options.kind, self._options.matches):
                await send(_line("ADDED", item))
            self._seen = self._store.revision
        while not self.ended:
            changed = self._changed()
            if self._silent():
                await changed.wait()
                continue
            try:
                for line in self._changes():
                    await send(line)
            except StatusError as error:
                await send(_line("ERROR", error.body()))
                return
            if loop.time() >= bookmark and self._options.bookmarks:
                following = min(loop.time() + self._interval, end - BEFORE_END)
                bookmark = following if following > bookmark else end
                if self._store.revision > self._start:
                    await send(self._bookmark(self._store.revision))
            if loop.time() >= end:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(bookmark, end) if self._options.bookmarks else end):
                    await changed.wait()

    def _changes(self) -> Iterator[bytes]:
        """Yield the events that have not been sent. Raises StatusError if the history no longer has them."""
        if self._seen < self._store.compacted:
            raise StatusError(410, "Expired", f"too old resource version: {self._seen} ({self._store.compacted})")
        for change in list(self._store.history):
            if change.revision > self._seen:
                self._seen = change.revision
                kind = self._event(change)
                if kind:
                    yield _line(kind, change.object)

    def _event(self, change: Change) -> str:
        """Return the type of the event; empty if it is none for this watch."""
        if change.kind != self._options.kind:
            return ""
        after = change.type != "DELETED" and self._options.matches(change.object)
        before = change.previous is not None and self._options.matches(change.previous)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else ""

    def _bookmark(self, version: int) -> bytes:
        kind = self._options.kind
        self._seen = max(self._seen, version)
        metadata = {"resourceVersion": str(version), "creationTimestamp": None}
        return _line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata})


def _line(kind: str, content: Object) -> bytes:
    return json.dumps({"type": kind, "object": content}, separators=(",", ":")).encode() + b"\n"
