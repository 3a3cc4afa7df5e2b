"""What a family of devices has to bring so that this room can serve it to a kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aosp_plugin.framework.api.deviceplugin_pb2 import ContainerAllocateResponse
    from aosp_plugin.framework.inventory import Device


class Backend(Protocol):
    """A family of devices.

    ``refresh`` may take its time and is called in a thread of its own, never twice at once. All the other
    methods answer from memory: the kubelet waits for them in the loop that starts its pods.
    """

    get_preferred_allocation_available: bool
    """Whether the kubelet should ask ``prefer`` before it chooses devices."""
    pre_start_required: bool
    """Whether the kubelet should call ``pre_start`` before every start of a container."""

    def devices(self) -> Sequence[Device]:
        """Return the devices as of the last ``refresh``, in the order in which they are advertised."""

    def directories(self) -> frozenset[str]:
        """Return the directories, as this process sees them, in which a change of files calls for a refresh."""

    def refresh(self, changed: Collection[str] | None = None) -> None:
        """Look at the host again: at these files of the ``directories``, as nothing else has changed; None: at all.

        Raises OSError or PluginError where it can't; the devices then stay.
        """

    def allocate(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return what one container needs for the devices ``ids``: known and healthy ones, each once.

        Idempotent: the kubelet may ask for the same ID again and never says when a device is given back.
        Raises AllocationError.
        """

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose ``size`` of ``available``, ``must_include`` among them."""

    def pre_start(self, ids: Sequence[str]) -> None:
        """Prepare devices for a container about to start. Raises AllocationError."""

    def close(self) -> None:
        """Let go of what is held."""
