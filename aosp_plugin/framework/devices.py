"""The devices of a resource as they are advertised to the kubelet, in little memory.

A node may have a hundred thousand devices, and nearly all of them are healthy and on no NUMA node. ``Devices`` has
nothing but the IDs of those, and makes their ``Device`` objects on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from collections.abc import Set as AbstractSet

MAX_ID_LENGTH = 63
"""Characters in a device ID (comment at ``Device.ID`` in the kubelet's api.proto)."""


class Device(NamedTuple):
    """One device as it is advertised to the kubelet."""

    id: str
    reason: str = ""
    """Why the device is unhealthy, as one word for metrics and logs; empty if it is healthy."""
    numa_nodes: tuple[int, ...] = ()
    detail: str = ""
    """A longer description of the reason, for messages; optional."""

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may allocate the device."""
        return not self.reason

    @property
    def why(self) -> str:
        """Why the device is unhealthy, in the most detailed form available."""
        return self.detail or self.reason


class Devices(Sequence[Device]):
    """The devices of one resource, in order. Immutable; for any thread."""

    __slots__ = ("_known", "ids", "special")

    def __init__(
        self, ids: Sequence[str], special: Mapping[str, Device] | None = None, known: AbstractSet[str] | None = None
    ) -> None:
        """Create the list. ``special`` has the devices, by ID, that differ from ``Device(id)``.

        The IDs must be valid and unique: ``valid_devices`` checks those of unknown origin. ``known`` are all IDs, if
        the caller has them as a set or as the keys of a dict. The arguments must not change afterwards.
        """
        self.ids = ids
        """The IDs, in order."""
        self.special: Mapping[str, Device] = {} if special is None else special
        """The devices that are unhealthy or on a NUMA node, by ID, in any order."""
        self._known = known

    @classmethod
    def of(cls, devices: Iterable[Device]) -> Devices:
        """Return these devices, whose IDs must be valid and unique; the same object if it is one of this class."""
        if isinstance(devices, Devices):
            return devices
        by_id = {device.id: device for device in devices}
        special = {device_id: device for device_id, device in by_id.items() if device[1:] != _PLAIN}
        return cls(list(by_id), special)

    @property
    def known(self) -> AbstractSet[str]:
        """All IDs as a set, for fast look-ups and differences."""
        if self._known is None:
            self._known = frozenset(self.ids)
        return self._known

    def get(self, device_id: str) -> Device | None:
        """Return the device with this ID; None if there is none."""
        device = self.special.get(device_id)
        return device if device is not None or device_id not in self.known else Device(device_id)

    def all_healthy(self, ids: Collection[str]) -> bool:
        """Return whether all of these IDs are those of healthy devices."""
        special, known = self.special, self.known
        for device_id in ids:
            if device_id not in known or (device_id in special and special[device_id].reason):
                return False
        return True

    def among(self, ids: Iterable[str]) -> dict[str, Device]:
        """Return those of ``special`` that are among these IDs, in their order."""
        special = self.special
        return {device_id: special[device_id] for device_id in ids if device_id in special} if special else {}

    @overload
    def __getitem__(self, position: int) -> Device: ...
    @overload
    def __getitem__(self, position: slice) -> list[Device]: ...
    def __getitem__(self, position: int | slice) -> Device | list[Device]:
        """Return the device at a position, or a list of devices."""
        if isinstance(position, slice):
            return [self._device(device_id) for device_id in self.ids[position]]
        return self._device(self.ids[position])

    def __iter__(self) -> Iterator[Device]:
        """Iterate over the devices in order."""
        return map(self._device, self.ids) if self.special else map(Device, self.ids)

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same devices in the same order."""
        if isinstance(other, Devices):
            return self.ids == other.ids and self.special == other.special
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as for a list

    def __repr__(self) -> str:
        """Return the devices as a list, for messages of tests."""
        return f"Devices({[*self]!r})"

    def _device(self, device_id: str) -> Device:
        return self.special.get(device_id) or Device(device_id)


_PLAIN = Device("")[1:]


def id_problem(device_id: str) -> str | None:
    """Return why this device ID cannot be advertised; None if it is valid.

    ``str.isprintable`` is false for control characters, and for the surrogates that represent bytes that are not UTF-8,
    which a protobuf string cannot carry.
    """
    if not device_id:
        return "the ID is empty"
    if len(device_id) > MAX_ID_LENGTH:
        return f"the ID has {len(device_id)} characters; the limit is {MAX_ID_LENGTH}"
    if not device_id.isprintable():
        return "the ID has characters that are not printable"
    return None


def valid_devices(devices: Iterable[Device]) -> tuple[list[Device], dict[str, str]]:
    """Return the devices with valid and unique IDs, and the reason why its device is skipped for each other ID.

    Of several devices with the same ID, the first one stays.
    """
    valid: dict[str, Device] = {}
    problems: dict[str, str] = {}
    for device in devices:
        problem = "another device has the same ID" if device.id in valid else id_problem(device.id)
        if problem:
            problems[device.id] = problem
        else:
            valid[device.id] = device
    return [*valid.values()], problems
