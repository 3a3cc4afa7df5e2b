"""Whether the API server keeps taints of devices (feature gate DRADeviceTaints, on by default from Kubernetes 1.36).

A server without them drops the field without an error, and the unhealthy device would be free for pods until the
answer was read. Therefore a creation that is only simulated comes first; until its answer, unhealthy devices are
omitted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aosp_plugin.framework.apiserver.errors import ApiError
from aosp_plugin.framework.apiserver.paths import RESOURCE_SLICES
from aosp_plugin.framework.apiserver.retries import Backoff
from aosp_plugin.framework.dra.slices import taint_probe

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.dra.slices import Identity

LOG = logging.getLogger(__name__)

LIFETIME = 3600.0
"""Seconds for which an answer holds: a gate changes when API servers restart, which breaks the watch, or may not."""


class TaintSupport:
    """Knows whether taints are kept, and asks when it has to be known."""

    def __init__(self, api: ApiClient, clock: Callable[[], float], rng: random.Random | None = None) -> None:
        """``clock`` returns seconds."""
        self._api = api
        self._clock = clock
        self._backoff = Backoff(rng)
        self._known: bool | None = None
        self.due: float = 0.0
        """The time from which on the server is to be asked."""

    @property
    def kept(self) -> bool:
        """Whether the server keeps taints, as far as known."""
        return bool(self._known)

    def ask_again(self) -> None:
        """Handle a connection to another API server, or to the same one after its restart."""
        self.due = 0.0

    def dropped(self) -> None:
        """Handle an answer in which taints are missing."""
        self._learn(kept=False)

    async def learn(self, identity: Identity) -> None:
        """Ask the server. After a failure, the last answer holds, and ``due`` is the time of the next attempt."""
        try:
            answer = await self._api.create(RESOURCE_SLICES, taint_probe(identity), dry_run=True)
        except ApiError as error:
            if error.transient:
                self.due = self._clock() + self._backoff.pause(error)
            else:  # for example, a webhook that does not support dry runs
                LOG.warning("API server refuses the question whether it keeps taints", extra={"error": str(error)})
                self._learn(kept=bool(self._known))
        else:
            self._learn(kept=_has_taint(answer))

    def _learn(self, *, kept: bool) -> None:
        self._backoff.succeeded()
        self.due = self._clock() + LIFETIME
        if kept != self._known:
            how = "by taints" if kept else "by omitting them: the API server drops taints"
            LOG.info("unhealthy devices are published", extra={"how": how})
        self._known = kept


def _has_taint(answer: Any) -> bool:
    try:
        return bool(answer["spec"]["devices"][0]["taints"])
    except (KeyError, IndexError, TypeError):
        return False
