"""Who is told what the plugin of a resource does, and which resource it is that something is done for.

Nothing here counts, measures or writes: ``operate.metrics`` is an ``Observer``, and ``operate.logs`` asks ``RESOURCE``.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.framework.inventory import Snapshot

RESOURCE: ContextVar[str] = ContextVar("resource", default="")
"""The name of the resource that the running task or thread works for; empty where it works for none or for all."""


@contextlib.contextmanager
def working_for(resource_name: str) -> Iterator[None]:
    """Have all that is done in the context, and by tasks and threads that begin in it, done for this resource."""
    token = RESOURCE.set(resource_name)
    try:
        yield
    finally:
        RESOURCE.reset(token)


def milliseconds(seconds: float) -> float:
    """Return a duration as the log has it."""
    return round(seconds * 1000, 2)


class Observer(Protocol):
    """Is told what the plugin of one resource does, in the event loop and while a kubelet may wait for an answer.

    Durations are in seconds.
    """

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Take note of a look at the devices. One that hangs has not ended, and is told again when it has."""

    def published(self, snapshot: Snapshot, since: float | None) -> None:
        """Take note of devices that differ from the last ones.

        ``since`` is when the first of the file events came that led to it (``time.monotonic``); None: there was none.
        """

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Take note of how an attempt to register came out; ok: and the kubelet has asked for the devices."""

    def unregistered(self) -> None:
        """Take note that a registration is over."""

    def kubelet_restarted(self) -> None:
        """Take note that a registration is with another kubelet than the last one."""

    def stream_opened(self) -> None:
        """Take note that a kubelet has called ListAndWatch."""

    def stream_closed(self) -> None:
        """Take note that such a call is over."""

    def sent(self, size: int, *, first: bool) -> None:
        """Take note that the devices were handed to a stream: ``size`` bytes, and the first ones on it or not."""

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Take note that a request was answered. ``code`` is the name of a ``grpc.StatusCode``."""


class NullObserver:
    """Takes no notice."""

    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing."""

    scanned = published = registration = unregistered = kubelet_restarted = _nothing
    stream_opened = stream_closed = sent = answered = _nothing


NULL_OBSERVER: Observer = NullObserver()
