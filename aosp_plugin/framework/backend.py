"""The interface between a family of devices and the framework that serves it to the kubelet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from aosp_plugin.framework.devices import ContainerEdits, Device
from aosp_plugin.framework.errors import InvalidRequestError

_NO_ATTRIBUTES: Mapping[str, bool | int | str | Version] = MappingProxyType({})


class Version(str):
    """A semantic version (2.0.0 of its specification) as the value of an attribute, such as 6.1.0."""

    __slots__ = ()


class ClaimParameters(msgspec.Struct, frozen=True):
    """Parameters for this driver in the configuration of a ResourceClaim or its DeviceClass."""

    source: Literal["class", "claim"]
    """class: written by an administrator; claim: written by the user of the pod."""
    content: Any
    """The JSON value as the API server has it."""


class Backend(ABC):
    """The devices of one resource on this host.

    A subclass sets ``resource_name`` and implements ``scan``, ``devices`` and ``allocate``; everything else has a
    default.

    **Threading contract**

    ==================================================== ==============================================================
    method                                               runs in
    ==================================================== ==============================================================
    ``scan``, ``update_host``, ``pre_start``,            one worker thread per resource, one call after another; may
    ``prepare``, ``is_prepared``, ``unprepare``,         block; the only methods that may use files of the host
    ``retain``, ``close``
    ``devices``, ``directories``                         the worker thread, after a successful ``scan``
    ``seconds_until_scan``                               the event loop, after a successful ``scan``
    ``allocate``, ``prefer``, ``attributes``             the event loop, at any time, also while the worker thread runs
                                                         another method
    ==================================================== ==============================================================

    The methods in the last three rows answer from memory within a millisecond or so, without a system call on files of
    the host. The event loop serves every resource of the process, and the kubelet waits for the answer before it starts
    any other pod.

    A method that hangs in the worker thread delays the others of that resource: its devices stay published as they are,
    and PreStartContainer fails after its deadline. Nothing else is affected.

    ``scan`` shares its result with ``allocate`` and ``prefer`` without a lock. It must therefore build a new value,
    immutable or never changed afterwards, and replace the old one by a single assignment::

        def scan(self):
            table = {device.id: device for device in read_host()}  # may take seconds
            self._table = table  # the only assignment of shared state

        def allocate(self, ids):
            table = self._table  # read once, so that the whole answer is based on one scan
            ...

    If two values belong together, keep them in one tuple. The class attributes are read at any time and must not
    change.
    """

    resource_name: str
    """The extended resource that pods request, such as ``example.com/gpu``."""
    scanned_files: str = ""
    """The files that a scan considers, for messages, such as ``/dev/ttyUSB*``; empty if there is nothing to name."""
    get_preferred_allocation_available: bool = False
    """Whether the kubelet calls ``prefer`` before it chooses devices for a container."""
    pre_start_required: bool = False
    """Whether the kubelet calls ``pre_start`` before each start of a container."""
    creates_devices: bool = False
    """Whether ``update_host`` creates devices: the first scan may then find none, and another one precedes the first
    registration."""

    @abstractmethod
    def scan(self) -> None:
        """Read the state of all devices from the host: after a change of files, and at intervals.

        Raises OSError or PluginError (usually BackendError). The devices of the last successful scan then stay
        advertised, and the framework retries.
        """

    def update_host(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Update what depends on the result of a scan on the host, such as CDI specs, and create missing devices.

        Called after each successful scan, when its result is published. Idempotent, and cheap if nothing is to be done.
        A change that affects the devices is found by the scan that its file event causes, or that
        ``seconds_until_scan`` requests. Raises OSError or PluginError. The error is reported separately, delays no
        publishing, and the framework retries.
        """

    def seconds_until_scan(self) -> float | None:
        """Return the seconds until a scan is due without a file event; None if none is.

        For changes that depend on time, such as the removal of a device that has been missing for long enough, and for
        those that ``update_host`` made. Asked after each ``scan`` and each ``update_host``.
        """
        return None

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
        """Prepare the devices ``ids`` for a container that is about to start. Idempotent. Raises AllocationError.

        The kubelet gets DEADLINE_EXCEEDED after ``Timings.pre_start``. The call goes on nevertheless, and the
        kubelet asks for the same devices again.
        """

    def attributes(self, device_id: str) -> Mapping[str, bool | int | str | Version]:  # noqa: ARG002 - for subclasses
        """Return what users can select a device by, for DRA; answers from memory.

        A name without a domain belongs to the driver. The framework adds ``id`` and the NUMA node.
        """
        return _NO_ATTRIBUTES

    def prepare(self, ids: Sequence[str], parameters: Sequence[ClaimParameters]) -> Sequence[ContainerEdits]:
        """Prepare the devices ``ids`` of one request of a ResourceClaim; return what a container gets with each.

        Called after a successful scan. Together, the edits are what a container with all of them gets. Idempotent: a
        device that is prepared stays as it is, because containers may have it; ``unprepare`` has been called for it if
        the claim is a new one. After a restart of the process, it is called again for each claim. ``parameters`` come
        in the order of their precedence, the strongest last. Raises AllocationError: InvalidRequestError names the
        field of ``parameters``.

        The default returns what ``allocate`` returns, with the first device, and accepts no parameters.
        """
        if parameters:
            raise InvalidRequestError(f"{self.resource_name} has no parameters")
        return [self.allocate(ids), *[ContainerEdits()] * (len(ids) - 1)]

    def is_prepared(self, ids: Sequence[str]) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the devices ``ids`` of a prepared claim are as ``prepare`` left them, for example mounted.

        Asked every minute. If not, ``prepare`` is called, and the CDI spec is written again, because device nodes may
        have other numbers. Raises OSError or PluginError. The default is True.
        """
        return True

    def unprepare(self, ids: Sequence[str]) -> None:  # noqa: B027 - a default, not an abstract method
        """Release the devices ``ids`` of a claim that no container uses any more. Idempotent; IDs may be unknown.

        Raises OSError or PluginError. The framework then retries, and gives the devices to no other claim.
        """

    def retain(self, ids: Collection[str]) -> None:  # noqa: B027 - a default, not an abstract method
        """Release all devices but ``ids``, those of the prepared claims, as a process that was killed may have left.

        Called when all prepared claims are known after a start, and from time to time. Devices that pods have in
        another way stay. Idempotent; cheap if nothing is to be released. Raises OSError or PluginError.
        """

    def close(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Release resources, at the end. Raises OSError or PluginError."""
