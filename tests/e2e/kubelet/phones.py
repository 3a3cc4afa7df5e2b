"""A phone as a set of three binder devices: its resource, configuration and devices."""

from collections.abc import Set as AbstractSet
from typing import Final

from tests.e2e.kubelet.node import COUNT, names, natural_sort
from tests.e2e.kubelet.plugins import SHARING
from tests.e2e.kubelet.pods import PREFIX

PHONE: Final = "aosp.io/phone"
SIZE: Final = 3
PHONES: Final = names(*range(0, COUNT, SIZE))
PATHS: Final = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
SETS: Final = f"sets: {{size: {SIZE}}}\ncontainer_paths: [{', '.join(PATHS)}]\n"
CONFIGURATION: Final = f"version: v1\nresource_name: {PHONE}\n{SETS}{SHARING}"


def binder_devices_of(phones: AbstractSet[str]) -> list[str]:
    """Return the names of the phones' binder devices, by number."""
    firsts = [int(phone.removeprefix(PREFIX)) for phone in phones]
    return natural_sort(names(*(number for first in firsts for number in range(first, first + SIZE))))
