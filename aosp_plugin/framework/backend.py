"""The interface between a family of devices and the framework that serves it to the kubelet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aosp_plugin.framework.edits import ContainerEdits
    from aosp_plugin.framework.inventory import Device


class Backend(ABC):
    """The devices of one resource on this host.

    A subclass sets ``resource_name`` and implements ``scan``, ``devices`` and ``allocate``; everything else has a
    default.

    **Threading contract**

    ============================================ ======================================================================
    method                                       runs in
    ============================================ ======================================================================
    ``scan``                                     a worker thread; never twice at the same time; may block
    ``devices``, ``directories``                 the event loop; never while a ``scan`` runs
    ``allocate``, ``prefer``, ``pre_start``      the event loop; at any time, also while a ``scan`` runs
    ``close``                                    the event loop; once, at the end; a ``scan`` may still run
    ============================================ ======================================================================

    The event loop runs one of these methods at a time, and serves every resource of the process. A method that runs in
    it must answer from memory within a millisecond or so: the kubelet waits for the answer in the loop that starts
    its pods.

    ``scan`` shares its result with ``allocate``, ``prefer`` and ``pre_start`` without a lock. It must therefore build a
    new value, immutable or never changed afterwards, and replace the old one by a single assignment::

        def scan(self, changed=None):
            table = {device.id: device for device in read_host()}  # may take seconds
            self._table = table  # the only assignment of shared state

        def allocate(self, ids):
            table = self._table  # read once, so that the whole answer is based on one scan
            ...

    If two values belong together, keep them in one tuple. ``get_preferred_allocation_available`` and
    ``pre_start_required`` are read at each registration and must not change.
    """

    resource_name: str
    """The extended resource that pods request, such as ``example.com/gpu``."""
    scanned_files: str = ""
    """The files that a scan considers, for messages, such as ``/dev/ttyUSB*``; empty if there is nothing to name."""
    get_preferred_allocation_available: bool = False
    """Whether the kubelet calls ``prefer`` before it chooses devices for a container."""
    pre_start_required: bool = False
    """Whether the kubelet calls ``pre_start`` before each start of a container."""

    @abstractmethod
    def scan(self, changed: Collection[str] | None = None) -> None:
        """Read the state of the devices from the host.

        ``changed`` has the paths of the files in ``directories()`` that changed since the last scan, if nothing else
        can have changed; it may be empty. None requests a full scan. A backend may always do a full scan.

        Raises OSError or PluginError (usually BackendError). The devices of the last successful scan then stay
        advertised, and the framework retries.
        """

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Return the devices of the last scan, in the order in which they are advertised.

        IDs must be unique, have 1 to 63 printable characters, and be stable: the kubelet remembers them after a
        restart. The framework skips devices with other IDs and logs a warning.
        """

    @abstractmethod
    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Return what one container gets for the devices ``ids``.

        Each ID was advertised as Healthy a moment ago, and occurs once. The method must be idempotent: the kubelet may
        ask for the same ID again, and never reports that a device is released. Raises AllocationError.
        """

    def directories(self) -> frozenset[str]:
        """Return the directories, as paths of this process, in which a change of files requires a scan."""
        return frozenset()

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Return the ``size`` IDs out of ``available`` that suit a container best.

        ``must_include`` is a subset of ``available`` that the answer has to contain. The default has no preference.
        """
        chosen = set(must_include)
        others = [device_id for device_id in available if device_id not in chosen]
        return [*must_include, *others][:size]

    def pre_start(self, ids: Sequence[str]) -> None:  # noqa: B027 - a default, not an abstract method
        """Prepare the devices ``ids`` for a container that is about to start. Raises AllocationError."""

    def close(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Release resources. Raises OSError or PluginError."""
