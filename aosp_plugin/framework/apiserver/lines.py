"""The lines of a watch."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self

from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Content(Protocol):
    """The body of an answer that arrives in parts."""

    def readany(self) -> Awaitable[bytes]:
        """Return what has arrived, at least one byte; empty at the end."""


class Lines:
    """An iterator over the lines of a body.

    Raises ApiUnavailableError if nothing arrives for ``limit`` seconds, and if a line is cut off or too long.
    """

    def __init__(self, request: Request, content: Content, *, limit: float, max_size: int) -> None:
        """``max_size`` is the longest line in bytes."""
        self.limit = limit
        """May be changed between two lines."""
        self._request = request
        self._content = content
        self._max_size = max_size
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()

    def __aiter__(self) -> Self:
        """Return the iterator."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next line, without its end."""
        while not self._lines:
            part = await self._read()
            if not part:
                if self._rest.strip():
                    raise ApiUnavailableError(self._request, "the watch ended within an event")
                raise StopAsyncIteration
            self._rest += part
            if b"\n" in part:
                *lines, self._rest = self._rest.split(b"\n")
                self._lines.extend(map(bytes, lines))
            if max(len(self._rest), *map(len, self._lines), 0) > self._max_size:
                raise ApiUnavailableError(self._request, f"an event has more than {self._max_size} bytes")
        return self._lines.popleft()

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self.limit):
                return await self._content.readany()
        except TimeoutError:
            raise ApiUnavailableError(self._request, f"the server has sent nothing for {self.limit:g} s") from None
