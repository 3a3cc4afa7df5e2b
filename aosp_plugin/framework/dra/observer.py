"""The observer of a DRA driver's events; one is in ``service.metrics``."""

from __future__ import annotations

from typing import Literal

Repaired = Literal["claim", "spec", "mount"]


class DraObserver:
    """Receives the events of one DRA driver; this base class ignores them.

    The methods are called in the event loop and must return within microseconds. Durations are in seconds.
    """

    def prepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Handle the end of the preparation of one claim."""

    def unprepared(self, result: Literal["ok", "failed"], seconds: float) -> None:
        """Handle the end of the unpreparation of one claim, by the kubelet or by reconciliation."""

    def claims_changed(self, prepared: int) -> None:
        """Handle a change of the number of prepared claims."""

    def waited_for_device(self, seconds: float) -> None:
        """Handle the end of the wait for a device that another claim still had."""

    def api_request(self, verb: str, resource: str, code: str) -> None:
        """Handle the end of a request to the API server; ``code`` is an HTTP status, or ``error`` without one."""

    def slices(self, wanted: int, confirmed: int) -> None:
        """Handle a change of the number of slices that should exist, or that exist as they should."""

    def slices_repaired(self, reason: Literal["deleted", "changed", "missing"]) -> None:
        """Handle a slice that the driver wrote again, after another client had deleted or changed it."""

    def reconciled(self, kind: Repaired, result: Literal["ok", "failed"]) -> None:
        """Handle a repair by reconciliation: a claim that is gone, or a spec or mount that was lost."""


NULL_DRA_OBSERVER = DraObserver()
