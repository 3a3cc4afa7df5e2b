"""When a slice may be written again: at once, after a pause that grows with failures, or with a fight about it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from aosp_plugin.framework.apiserver.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.apiserver.errors import ApiError

AT_ONCE = 3
"""Repairs of a slice in a row that are made at once: kubelets that start again and again, each of which deletes all
slices of its node (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go)."""

FIRST, FACTOR, CAP = 0.2, 2.0, 30.0
"""Seconds, factor, seconds: the pauses before the repairs that follow."""

CALM = 90.0
"""Seconds without a foreign change after which a fight is over; more than the longest pause."""

LONGEST_RETRY_PAUSE = 60.0
"""Seconds; the upper limit of the pauses after failures, unless the server asks for more."""


class Pacing:
    """The pace of the writes of one slice."""

    def __init__(self, clock: Callable[[], float], rng: random.Random | None = None) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._backoff = Backoff(self._rng, cap=LONGEST_RETRY_PAUSE)
        self._last_damage = -CALM
        self._damages = 0
        self._asked_until = 0.0
        self.due = 0.0
        """The time from which on the slice may be written."""

    @property
    def contested(self) -> bool:
        """Whether another client deletes or changes the slice again and again."""
        return self._damages > AT_ONCE and self._clock() - self._last_damage < CALM

    def succeeded(self) -> None:
        """Handle a write that the server has confirmed."""
        self._backoff.succeeded()

    def failed(self, error: ApiError | None = None) -> None:
        """Handle a write that was in vain."""
        until = self._clock() + self._backoff.pause(error)
        self.due = max(self.due, until)
        if error is not None and error.retry_after is not None:
            self._asked_until = until

    def damaged(self) -> None:
        """Handle a deletion or change by another client."""
        now = self._clock()
        if now - self._last_damage >= CALM:
            self._damages = 0
        self._last_damage = now
        self._damages += 1
        if self._damages > AT_ONCE:
            pause = min(FIRST * FACTOR ** (self._damages - AT_ONCE - 1), CAP)
            self.due = max(self.due, now + pause * self._rng.uniform(0.5, 1.0))

    def retry_now(self) -> None:
        """Permit the next write at once, because what failed may succeed now; the server's Retry-After still holds."""
        self._backoff.succeeded()
        if not self.contested:
            self.due = self._asked_until
