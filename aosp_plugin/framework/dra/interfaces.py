"""What the parts of a DRA driver exchange: claims as the kubelet names them, prepared devices, health, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Repaired = Literal["claim", "spec", "mount"]
"""What a reconciliation has repaired."""


class ClaimReference(NamedTuple):
    """A ResourceClaim as the kubelet names it; another claim may have the same namespace and name later."""

    namespace: str
    name: str
    uid: str


class PreparedDevice(NamedTuple):
    """A device of a prepared claim, as the kubelet passes it to containers."""

    requests: tuple[str, ...]
    """Names of the requests of the claim that have it, without the names of subrequests."""
    pool: str
    device: str
    """Name in the ResourceSlice."""
    cdi_devices: tuple[str, ...]
    """Qualified CDI names, such as example.com/gpu=NAME; empty if the container gets nothing with this device."""


class DeviceHealth(NamedTuple):
    """Health of a device of a prepared claim."""

    pool: str
    device: str
    healthy: bool
    message: str
    """Why it is unhealthy; empty if it is healthy."""


class DriverState(NamedTuple):
    """What a driver has published and prepared."""

    name: str
    """Name of the driver, such as phone.aosp.io."""
    slices: int
    """Number of ResourceSlices that should exist."""
    slices_confirmed: int
    """Number of those that the API server has as they should be."""
    claims: int
    """Number of prepared claims."""


class ClaimHandler(Protocol):
    """Prepares and unprepares claims for the kubelet. All methods run in the event loop.

    The kubelet passes all claims of a pod in one call, and calls overlap. The answers have an entry for each claim and
    no others, or the kubelet refuses all of them (pkg/kubelet/cm/dra/manager.go).
    """

    async def prepare(
        self, claims: Sequence[ClaimReference], seconds: float
    ) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """Prepare claims within ``seconds``; return the devices or the error of each, by UID.

        A caller that is cancelled leaves no claim half prepared.
        """

    async def unprepare(self, claims: Sequence[ClaimReference], seconds: float) -> Mapping[str, str]:
        """Unprepare claims within ``seconds``; return the error of each by UID, empty for success."""


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

    def slices_repaired(self, reason: Literal["deleted", "changed"]) -> None:
        """Handle a slice that another client has deleted or changed; the driver writes it again."""

    def reconciled(self, kind: Repaired, result: Literal["ok", "failed"]) -> None:
        """Handle a repair by reconciliation: a claim that is gone, or a spec or mount that was lost."""


NULL_DRA_OBSERVER = DraObserver()
