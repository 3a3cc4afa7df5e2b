"""What serves one resource to the kubelet: a device plugin or a DRA driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from aosp_plugin.framework.deviceplugin.kubelet_view import Confirmation
    from aosp_plugin.framework.inventory import Inventory


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


class ResourceServer(Protocol):
    """Serves one resource. Created and run in the same event loop; it runs once."""

    resource_name: str
    """The extended resource."""
    inventory: Inventory
    confirmation: Confirmation
    """What the kubelet has of the devices; always unknown for a DRA driver, whose devices are in ResourceSlices."""

    @property
    def driver(self) -> DriverState | None:
        """What a DRA driver has published and prepared; None for a device plugin."""

    @property
    def registered(self) -> bool:
        """Whether the kubelet is registered."""

    @property
    def unready(self) -> str:
        """Why pods cannot get all devices as they are now; empty if they can."""

    @property
    def notice(self) -> str:
        """What an operator should know although the resource is ready. May be read in any thread."""

    def details(self, *, ready: bool) -> str:
        """Return what is published, for the readiness probe; empty if nothing is to be said."""

    def stop(self) -> None:
        """Make ``run`` return."""

    def rescan(self) -> None:
        """Request a full scan without a file event."""

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without any other effect. Either ``run`` or ``discard`` has to follow.

        Raises OSError and PluginError.
        """

    async def discard(self) -> None:
        """Release the resources of a server that does not run."""

    async def run(self, *, require_devices: bool = False) -> None:
        """Serve until ``stop`` is called. Raises OSError and PluginError, several as a group."""
