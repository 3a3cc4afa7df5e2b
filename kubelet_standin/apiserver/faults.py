"""Faults of the stand-in API server.

Each of the classes below is what happens to a request; :meth:`Faults.add` selects the requests::

    server.faults.add(Throttle(3.0), verb="create", times=2)      # the next two POST requests get 429
    hang = server.faults.add(Hang(), resource="resourceclaims")   # no request for claims is answered
    hang.remove()                                                 # those that wait are answered now
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from kubelet_standin.apiserver.statuses import StatusError

JSON: Final = "application/json"


class Fault:
    """What happens to a request."""

    async def answer(self, request: web.Request, active: Active) -> web.StreamResponse | None:  # noqa: ARG002
        """Return the answer instead of processing the request; None if it shall be processed, after a wait or not."""
        return None


@dataclass(frozen=True)
class Hang(Fault):
    """The request is read, and processed when the fault is removed."""

    async def answer(self, request: web.Request, active: Active) -> None:  # noqa: ARG002
        """Wait."""
        await active.removed.wait()


@dataclass(frozen=True)
class Cut(Fault):
    """The request is processed, and the connection breaks within the answer.

    ``after`` is the part of the body that is sent, from 0 to 1; None breaks the connection without an answer. A watch
    breaks within its next event.
    """

    after: float | None = 0.5

    def part(self, content: bytes) -> bytes:
        """Return what is sent of an answer or event."""
        return content[: round(len(content) * (self.after or 0))]


@dataclass(frozen=True)
class Garbage(Fault):
    """The request is not processed, and answered with something else."""

    body: bytes = b"<html><body>It works!</body></html>"
    content_type: str = JSON
    status: int = 200

    async def answer(self, request: web.Request, active: Active) -> web.Response:  # noqa: ARG002
        """Return the body."""
        return web.Response(body=self.body, status=self.status, headers={"Content-Type": self.content_type})


@dataclass(frozen=True)
class RawBytes(Fault):
    """The request is not processed; the answer is these bytes, which need not be HTTP. The connection is closed."""

    content: bytes = b"\x16\x03\x01\x02\x00\x01\x00"

    async def answer(self, request: web.Request, active: Active) -> web.Response:  # noqa: ARG002
        """Write the bytes."""
        if request.transport is not None:
            request.transport.write(self.content)
        break_connection(request)
        return web.Response()


@dataclass(frozen=True)
class Throttle(Fault):
    """The request is answered with 429 and Retry-After, as by API priority and fairness."""

    retry_after: float = 1.0

    async def answer(self, request: web.Request, active: Active) -> web.Response:  # noqa: ARG002
        """Return plain text: it is a filter before the API that answers (apiserver/pkg/server/filters)."""
        text = "Too many requests, please try again later.\n"
        return web.Response(status=429, text=text, headers={"Retry-After": str(round(self.retry_after))})


@dataclass(frozen=True)
class Refuse(Fault):
    """The request is answered with a Status object."""

    code: int = 503
    reason: str = "ServiceUnavailable"
    message: str = "the server is currently unable to handle the request"

    async def answer(self, request: web.Request, active: Active) -> web.Response:  # noqa: ARG002
        """Return the Status object."""
        return status_answer(StatusError(self.code, self.reason, self.message))


def status_answer(error: StatusError) -> web.Response:
    """Return the answer with a Status object."""
    body = json.dumps(error.body()).encode()
    return web.Response(status=error.code, body=body, headers={"Content-Type": JSON})


def break_connection(request: web.Request) -> None:
    """End a connection: what was written is sent, but not the end of the body."""
    if request.transport is not None:
        request.transport.close()


@dataclass
class Active:
    """A fault and the requests that it is for."""

    fault: Fault
    verb: str
    resource: str
    times: int | None
    hits: int = 0
    """The number of requests that it happened to."""
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it no longer happens."""

    def remove(self) -> None:
        """End the fault; requests that hang are processed. Idempotent."""
        self.removed.set()

    def matches(self, verb: str, resource: str) -> bool:
        """Return whether it happens to the next request with this verb and resource."""
        return (
            not self.removed.is_set()
            and self.verb in {"*", verb}
            and self.resource in {"*", resource}
            and (self.times is None or self.hits < self.times)
        )


class Faults:
    """The faults of one server. They may be changed at any time, in its event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Begin without a fault; ``changed`` is called after each change."""
        self._changed = changed
        self._active: list[Active] = []
        self.silent_watches = False
        """Whether watches send neither events nor bookmarks and do not end, as behind a half-closed connection. Use
        :meth:`silence_watches`."""

    def add(self, fault: Fault, *, verb: str = "*", resource: str = "*", times: int | None = None) -> Active:
        """Inject a fault into the next ``times`` requests, or into all until it is removed.

        ``verb`` is get, list, watch, create, update, patch, delete or deletecollection; ``resource`` a plural name. The
        first fault that matches a request happens to it.
        """
        active = Active(fault, verb, resource, times)
        self._active.append(active)
        return active

    def clear(self) -> None:
        """End all faults."""
        for active in self._active:
            active.remove()
        self._active.clear()
        self.silence_watches(silent=False)

    def silence_watches(self, *, silent: bool = True) -> None:
        """Let all watches, open and new, send nothing, or all that they have not sent."""
        self.silent_watches = silent
        self._changed()

    def next(self, verb: str, resource: str) -> Active | None:
        """Return the fault for a request, and count it."""
        for active in self._active:
            if active.matches(verb, resource):
                active.hits += 1
                self._changed()
                return active
        return None
