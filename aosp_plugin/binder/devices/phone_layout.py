"""Phones: device sets that have a binderfs each, with the binder devices that Android expects."""

from __future__ import annotations

import re

from aosp_plugin.binder.devices.sets import Named

PHONE_BINDER_DEVICES = ("binder", "hwbinder", "vndbinder")
"""Names of a phone's binder devices, in its binderfs and below /dev in Android."""

PHONE_PREFIX = "phone"
"""The ID of a phone, which is also the name of its directory, is this and its number."""

MINORS_PER_PHONE = len(PHONE_BINDER_DEVICES) + 1
"""Minor numbers of the driver that a phone uses: one more for its binder-control."""

_PHONE = re.compile(f"{PHONE_PREFIX}(0|[1-9][0-9]*)")


class PhoneLayout(Named):
    """The binder devices of phone N are phoneN/binder, phoneN/hwbinder and phoneN/vndbinder."""

    def __init__(self) -> None:
        super().__init__(PHONE_BINDER_DEVICES)

    def id_part(self, entry: str) -> str | None:
        """Return the file name if it is the ID of a phone."""
        return entry if phone_number(entry) is not None else None


def phone_id(number: int) -> str:
    """Return the ID of a phone."""
    return f"{PHONE_PREFIX}{number}"


def phone_number(device_id: str) -> int | None:
    """Return the number of a phone; None if this is not the ID of one."""
    match = _PHONE.fullmatch(device_id)
    return int(match[1]) if match else None


def is_phone(device_id: str) -> bool:
    """Return whether this is the ID of a phone."""
    return phone_number(device_id) is not None
