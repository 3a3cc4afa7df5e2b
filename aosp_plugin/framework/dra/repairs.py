"""The repairs of slices that other clients have deleted or changed: their pace, and what is logged of them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.dra.lasting_problem import LastingProblem
from aosp_plugin.framework.dra.pacing import CALM, Pacing

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from aosp_plugin.framework.dra.mirror import Change
    from aosp_plugin.framework.dra.observer import DraObserver
    from aosp_plugin.framework.dra.slices import StoredSlice

LOG = logging.getLogger(__name__)


class Repairs:
    """What is to be repaired, and the pace of the writes of each slice."""

    def __init__(self, observer: DraObserver, rng: random.Random | None) -> None:
        self._observer = observer
        self._rng = rng
        self._pacings: dict[str, Pacing] = {}
        self._damage: dict[str, Change] = {}
        self._not_logged: list[str] = []
        self._fight = LastingProblem()

    @property
    def problem(self) -> str:
        """That another client fights for slices; empty if none does. May be read in any thread."""
        return self._fight.text

    def pacing(self, name: str) -> Pacing:
        """Return the pace of a slice."""
        if name not in self._pacings:
            self._pacings[name] = Pacing(time.monotonic, self._rng)
        return self._pacings[name]

    def damaged(self, name: str, change: Change) -> None:
        """Handle a slice that is no longer as it was written."""
        self._damage[name] = change
        self._not_logged.append(name)
        self.pacing(name).damaged()

    def repaired(self, name: str) -> None:
        """Handle a slice that is as it should be, whether it was damaged or not."""
        if change := self._damage.pop(name, None):
            self._observer.slices_repaired(change)

    def forget(self, name: str) -> None:
        """Handle a slice that should be another one from now on."""
        self._damage.pop(name, None)
        if name in self._pacings:
            self._pacings[name].retry_now()

    def retain(self, names: Collection[str]) -> None:
        """Forget all slices but these; a fight lasts, although the slice is away for the moment."""
        self._pacings = {name: each for name, each in self._pacings.items() if name in names or each.contested}

    def retry_now(self) -> None:
        """Permit every write at once that waits because of a failure."""
        for pacing in self._pacings.values():
            pacing.retry_now()

    def log(self, stored: Mapping[str, StoredSlice]) -> float | None:
        """Log what has happened, a line for all slices; return the seconds after which a fight may be over."""
        contested = [name for name, pacing in self._pacings.items() if pacing.contested]
        names, self._not_logged = [name for name in self._not_logged if name in self._damage], []
        if names and not set(names) <= set(contested):
            manager = stored[names[0]].manager if names[0] in stored else ""
            extra = {"reason": self._damage[names[0]], "slices": len(names), "slice": names[0], "client": manager}
            LOG.warning("ResourceSlices were deleted or changed, repairing", extra=extra)
        if not contested:
            self._fight.ends()
            return None
        self._fight.begins(f"another client deletes or changes the ResourceSlice {contested[0]} again and again")
        return CALM
