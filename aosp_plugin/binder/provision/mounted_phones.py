"""The binderfs mounts of phones as they are on the host: which are the plugin's, and which phones are covered.

Nothing is changed, and no right is required: the mount table has the source of each mount.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.phones import phone_number
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.mount import translated_errors

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Collection, Mapping

    from aosp_plugin.binder.driver.host import Host


class MountedPhones:
    """The mounts below one directory of the host. For one worker thread."""

    source = phone_mount.SOURCE
    """The source of its mounts. Those of the other API are the plugin's as well, and are left as they are."""

    def __init__(self, directory: str, host: Host) -> None:
        """``directory`` is the host's. The host is not accessed."""
        self._host_directory = directory
        self._host = host
        self._devices: dict[str, int] = {}  # st_dev of the mounts that are known to be the plugin's
        self.foreign: frozenset[str] = frozenset()
        """Phones in whose place another file system, or a file, is. Replaced by a single assignment."""
        self.other_api: frozenset[str] = frozenset()
        """Phones that were mounted for pods that get them through the other API. Replaced by a single assignment."""

    def survey(self) -> dict[str, str]:
        """Return the phones that have a binderfs, with the source of it; set ``foreign`` and ``other_api``.

        Raises HostError.
        """
        with self._errors():
            return self._survey(self._directory())

    def is_own(self, phone: str) -> bool:
        """Return whether the plugin's binderfs was mounted for ``phone`` after the last call that concerned it."""
        return phone in self._devices

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return translated_errors(f"provision phones in {self._host_directory}")

    def _directory(self) -> str:
        return self._host.process_path(self._host.resolve(self._host_directory))

    def _survey(self, directory: str) -> dict[str, str]:
        own = phone_mount.own_mounts(phone_mount.read_mount_table())
        sources: dict[str, str] = {}
        foreign: set[str] = set()
        self._devices = {}
        for phone in phones_in(directory):
            path = f"{directory}/{phone}"
            try:
                device = self._own_device(path, own)
            except phone_mount.ForeignMountError:
                foreign.add(phone)
                continue
            if device is not None:
                sources[phone], self._devices[phone] = own[path][device], device
        self.foreign = frozenset(foreign)
        self.other_api = frozenset(phone for phone, source in sources.items() if source != self.source)
        return sources

    def _own_device(self, path: str, own: Mapping[str, Collection[int]]) -> int | None:
        """Return the number (st_dev) of the plugin's binderfs at ``path``; None if there is none. Raises HostError."""
        with translated_errors(f"read {path}"):
            device = phone_mount.mounted_device(path)
        if device is not None and device not in own.get(path, ()):
            raise phone_mount.foreign_mount(path)
        return device


def phones_in(directory: str) -> list[str]:
    """Return the phones that have a directory."""
    try:
        return [name for name in os.listdir(directory) if phone_number(name) is not None]
    except FileNotFoundError:
        return []
