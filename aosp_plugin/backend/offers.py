"""Which resource of this process offers a device of the host, so that no two do.

Two resources may find the same device: by a prefix and a pattern that both match, or through a link, a hard link, a
bind mount or a copy of a device number. A device that is there at the start makes the configuration invalid. One that
appears later is offered by the resource whose scan finds it usable first, and withheld by all others.

A resource keeps a device that its scan has lost until the kubelet has answered, to a later question, that no pod has
it.
"""

import threading
from collections.abc import Collection, Container, Hashable, Iterable, Mapping
from typing import NamedTuple

RETRY = 1.0
"""Seconds between two scans while another resource offers a device: it may withdraw the offer."""


class DeviceFiles(NamedTuple):
    """What identifies a device on this host."""

    places: Collection[Hashable]
    """The paths of its files, links resolved, and their names in a binderfs, whichever path leads to that. They stay
    the same when a binder device is recreated."""
    numbers: Collection[Hashable]
    """The device numbers and inodes of files that can have several paths. Only as of one scan: the kernel uses them
    again."""


class Offer(NamedTuple):
    """The right to offer a file of the host."""

    resource: str
    device_id: str
    scan: int
    """The number of the scan of the resource that found the file last; 0 before the first one."""


class Offers:
    """The offers of all resources of one configuration. For any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """While it is held, no other resource takes a device."""
        self._scans: dict[str, int] = {}
        """The number of scans by resource."""
        self._places: dict[Hashable, Offer] = {}
        self._numbers: dict[str, dict[Hashable, Offer]] = {}
        """As of the last scan, by resource."""

    def of_others(self, resource: str, devices: Mapping[str, DeviceFiles]) -> dict[str, Offer]:
        """Return the devices, by ID, that another resource offers."""
        with self.lock:
            numbers = [own for name, own in self._numbers.items() if name != resource]
            found = {}
            for device_id, files in devices.items():
                for place in files.places:
                    offer = self._places.get(place)
                    if offer is not None and offer.resource != resource:
                        found[device_id] = offer
                for number in files.numbers:
                    for own in numbers:
                        if number in own:
                            found[device_id] = own[number]
            return found

    def take(self, resource: str, devices: Mapping[str, DeviceFiles], usable: Container[str]) -> None:
        """Note what a scan has found: these devices, none of which another resource offers.

        The resource gets those that are ``usable``, and keeps those that it had before.
        """
        with self.lock:
            self._scans[resource] = scan = self._scans.get(resource, 0) + 1
            self._numbers[resource] = numbers = {}
            for device_id, files in devices.items():
                if device_id in usable or any(self._has(resource, place) for place in files.places):
                    offer = Offer(resource, device_id, scan)
                    for place in files.places:
                        self._places[place] = offer
                    for number in files.numbers:
                        numbers[number] = offer

    def keep(self, resource: str, places: Mapping[str, Iterable[Hashable]]) -> None:
        """Give a resource the places that its devices had before this process, unless one has been taken."""
        with self.lock:
            for device_id, own in places.items():
                for place in own:
                    self._places.setdefault(place, Offer(resource, device_id, 0))

    def lost(self, published: Mapping[str, Iterable[DeviceFiles]]) -> dict[Hashable, Offer]:
        """Return the offers of files that neither the last scan of their resource has found, nor the published one.

        ``published`` has the devices of each resource that pods may get now.
        """
        with self.lock:
            scans, offers = self._scans, self._places.items()
            lost = {place: offer for place, offer in offers if offer.scan != scans.get(offer.resource, 0)}
        resources = {offer.resource for offer in lost.values()}
        places = {name: {place for files in published[name] for place in files.places} for name in resources}
        return {place: offer for place, offer in lost.items() if place not in places[offer.resource]}

    def release(self, lost: Mapping[Hashable, Offer], used: Mapping[str, Collection[str] | None]) -> None:
        """Withdraw the offers of lost files that no pod has, unless a scan has found them since.

        ``used`` are the IDs, by resource, of the devices that pods have by an answer to a question that was asked after
        ``lost`` was called; None if they are unknown.
        """
        with self.lock:
            for place, offer in lost.items():
                ids = used[offer.resource]
                if ids is not None and offer.device_id not in ids and self._places.get(place) is offer:
                    del self._places[place]

    def _has(self, resource: str, place: Hashable) -> bool:
        offer = self._places.get(place)
        return offer is not None and offer.resource == resource
