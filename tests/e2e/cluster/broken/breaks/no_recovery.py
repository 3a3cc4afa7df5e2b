"""A device that was unhealthy once stays unhealthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.framework.inventory import Inventory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aosp_plugin.framework.devices import Device

_publish = Inventory.publish
_known: dict[str, Device] = {}


def _sticky(self: Inventory, devices: Iterable[Device]) -> bool:
    _known.update({device.id: device for device in devices if not device.healthy})
    return _publish(self, [_known.get(device.id, device) for device in devices])


Inventory.publish = _sticky  # type: ignore[method-assign]
