"""The phones of a resource that ``aosp-plugin provision`` has mounted: listed and checked, never mounted or removed.

``serve`` may have no right to mount them (``provisioned_by: command``). A phone without a binderfs stays listed, so
that its loss and the remedy are visible for as long as it lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aosp_plugin.backend.phones import Phones, binder_devices, replaced_phones
from aosp_plugin.binder.discovery.health import Problem, Reason
from aosp_plugin.binder.discovery.names import natural_sort

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aosp_plugin.backend.device_table import Scanned

REMEDY: Final = "no binderfs is mounted for it: restart the plugin's pod, or run aosp-plugin provision on the host"


class ProvisionedPhones(Phones):
    """Offers those of ``count`` phones that are mounted. For the worker thread, except for ``reason``."""

    mounted: frozenset[str] = frozenset()
    """The phones that have a binderfs. Replaced by a single assignment."""

    def problem(self, phone: str) -> Problem | None:
        """Return NOT_PROVISIONED if the phone is one of ``count`` and has no binderfs; otherwise None."""
        if phone in self.mounted or phone not in self._phones or phone in self._provisioner.foreign:
            return None
        return Problem(Reason.NOT_PROVISIONED, f"{Reason.NOT_PROVISIONED}: {REMEDY}")

    def names(self) -> Sequence[str]:
        """Return the names of the binder devices of ``count`` phones and of surplus ones, in natural order."""
        found = self._store.names
        missing = [name for names in self._phones.values() for name in names if name not in self._store.tracked]
        return natural_sort([*found, *missing]) if missing else found

    def is_listed(self, name: str) -> bool:
        """Return whether a binder device is one of ``names``."""
        return super().is_listed(name) or name.partition("/")[0] in self._phones

    def check(self) -> None:
        """Do nothing: no right to mount is required."""

    def scan(self, changed: Collection[str] | None) -> None:
        """Find the mounts, unless nothing has ``changed``. Raises HostError if their directory cannot be read."""
        if changed is not None and not changed:
            return
        foreign, mounted = self._provisioner.foreign, self.mounted
        self.mounted = frozenset(self._provisioner.survey())
        self.changed.update(binder_devices((foreign ^ self._provisioner.foreign) | (mounted ^ self.mounted)))

    def update_host(self, scanned: Scanned, *, full: bool) -> None:  # noqa: ARG002 - nothing is changed
        """Accept a fresh binderfs in place of a phone's former one, as ``aosp-plugin provision`` mounts it."""
        self._store.renew(binder_devices(phone for phone in replaced_phones(scanned.tracked) if phone in self.mounted))
