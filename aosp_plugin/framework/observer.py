"""The observer of one plugin's events, and the context variables with the current resource and request.

``service.metrics`` is an observer; ``service.logs`` adds resource and request to log records.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aosp_plugin.framework.inventory import Snapshot

RESOURCE: ContextVar[str] = ContextVar("resource", default="")
"""Name of the resource that the current task or thread works for; empty if it works for none, or for all."""


REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Number of the kubelet's request that the current task or thread works for; empty if it works for none."""


Repaired = Literal["claim", "spec", "mount"]
"""What a DRA driver has repaired on the host."""


@contextlib.contextmanager
def working_for(resource_name: str) -> Iterator[None]:
    """Set ``RESOURCE`` inside the context, also for the tasks and threads that start in it."""
    token = RESOURCE.set(resource_name)
    try:
        yield
    finally:
        RESOURCE.reset(token)


def milliseconds(seconds: float) -> float:
    """Return a duration in the unit and precision of the log."""
    return round(seconds * 1000, 2)


class LastingProblem:
    """What is wrong now. It is logged when it begins, when it becomes another one, and when it ends."""

    def __init__(self, log: logging.Logger, begins: str, ends: str, level: int = logging.WARNING) -> None:
        """``begins`` and ``ends`` are the messages in the log; ``level`` is that of the first one."""
        self._log = log
        self._begins = begins
        self._ends = ends
        self._level = level
        self.text = ""
        """The problem; empty if there is none. Set in one thread, and may be read in any."""

    def set(self, text: str, **extra: object) -> None:
        """Set the problem, or with an empty text its end. ``extra`` are the fields of the log record."""
        before, self.text = self.text, text
        if text and text != before:
            self._log.log(self._level, self._begins, extra=extra)
        elif before and not text:
            self._log.info(self._ends, extra=extra)


class Observer:
    """Receives the events of one resource's device plugin or DRA driver; this base class ignores them.

    The methods are called in the event loop, while a kubelet may wait for an answer, and must return within
    microseconds; ``answered`` in any thread, and in several at once. Durations are in seconds.
    """

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Handle a scan that ended, or hangs. A scan that hangs is reported again when it ends."""

    def host_updated(self, result: Literal["ok", "failed"]) -> None:
        """Handle the end of ``Backend.update_host``, which follows each successful scan."""

    def published(self, snapshot: Snapshot, since: float | None) -> None:
        """Handle a change of the devices.

        ``since`` is the time of the first file event that led to the change (``time.monotonic``); None if there was no
        event.
        """

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Handle the end of an attempt to register; ``ok`` means that the kubelet has also called ListAndWatch."""

    def unregistered(self) -> None:
        """Handle the end of a registration."""

    def lost_by_kubelet(self) -> None:
        """Handle a registration that ends because the kubelet has lost the devices although its stream is open."""

    def confirmed(self, allocatable: int | None) -> None:
        """Handle the kubelet's answer how many healthy devices it has; None if it did not answer."""

    def other_plugins(self, count: int) -> None:
        """Handle a change of the number of other plugins of the resource on this node."""

    def kubelet_restarted(self) -> None:
        """Handle the start of a registration with another kubelet than the last one."""

    def stream_opened(self) -> None:
        """Handle a call of ListAndWatch."""

    def stream_closed(self) -> None:
        """Handle the end of a ListAndWatch call."""

    def sent(self, size: int, *, first: bool) -> None:
        """Handle a device list of ``size`` bytes written to a stream; ``first`` if it is the first one on it."""

    def answered(self, rpc: str, code: str, seconds: float) -> None:
        """Handle a request that was answered. ``code`` is the name of a ``grpc.StatusCode``."""

    def prepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Handle the end of the preparation of one claim."""

    def unprepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Handle the end of the unpreparation of one claim by the kubelet."""

    def claims_changed(self, prepared: int) -> None:
        """Handle a change of the number of prepared claims."""

    def waited_for_device(self, seconds: float) -> None:
        """Handle the end of the wait for a device that another claim still had."""

    def api_request(self, verb: str, resource: str, code: str) -> None:
        """Handle the end of a request to the API server; ``code`` is an HTTP status, or ``error`` without one."""

    def slices(self, wanted: int, confirmed: int) -> None:
        """Handle a change of the number of slices that should exist, or that exist as they should."""

    def slices_repaired(self, reason: Literal["deleted", "changed"]) -> None:
        """Handle a slice that another client has deleted or changed; the driver writes it again."""

    def reconciled(self, kind: Repaired, result: Literal["ok", "failed"]) -> None:
        """Handle a repair by reconciliation: a claim that is gone, or a spec or mount that was lost."""


class Observers(Observer):
    """Passes each event to several observers, in their order."""

    def __init__(self, *observers: Observer) -> None:
        for event in [name for name in vars(Observer) if not name.startswith("_")]:
            setattr(self, event, partial(_call_each, [getattr(observer, event) for observer in observers]))


def _call_each(handlers: Iterable[Callable[..., None]], *arguments: object, **keywords: object) -> None:
    for handle in handlers:
        handle(*arguments, **keywords)


NULL_OBSERVER = Observer()
