"""The lines of a watch, however they arrive."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, Request
from aosp_plugin.framework.apiserver.lines import Lines

REQUEST = Request("watch", "/api/v1/nodes")


class Parts:
    """A body in parts, which ends or stays open."""

    def __init__(self, *parts: bytes, ends: bool = True) -> None:
        self._parts = list(parts)
        self._ends = ends

    async def readany(self) -> bytes:
        """Return the next part."""
        if self._parts:
            return self._parts.pop(0)
        if not self._ends:
            await asyncio.Event().wait()
        return b""


async def read(parts: Parts, *, limit: float = 10.0, max_size: int = 100) -> list[bytes]:
    return [line async for line in Lines(REQUEST, parts, limit=limit, max_size=max_size)]


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b""))), st.lists(st.integers(0, 100)))
def test_lines_do_not_depend_on_the_parts(lines: list[bytes], cuts: list[int]) -> None:
    body = b"".join(line + b"\n" for line in lines)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parts = [body[start:end] for start, end in pairwise(places) if end > start]
    assert asyncio.run(read(Parts(*parts))) == lines


async def test_a_body_that_ends_within_a_line_is_unavailable() -> None:
    with pytest.raises(ApiUnavailableError, match="ended within an event"):
        await read(Parts(b"a\nb"))


@pytest.mark.parametrize("parts", [(b"x" * 101,), (b"x" * 60, b"x" * 60), (b"x" * 101 + b"\n",)])
async def test_a_line_that_is_too_long_is_unavailable(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(ApiUnavailableError, match="an event has more than 100 bytes"):
        await read(Parts(*parts))


async def test_a_silent_body_is_unavailable() -> None:
    with pytest.raises(ApiUnavailableError, match=r"the server has sent nothing for 0\.05 s"):
        await read(Parts(b"a\n", ends=False), limit=0.05)
