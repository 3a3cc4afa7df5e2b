"""What the API server has of a driver's slices, as far as lists, watch events and answers have shown. Pure.

They arrive in any order: the event of a slice's deletion may precede the answer to its creation. Every change has a
resource version, and only a later one replaces what is known, or a slice that was deleted would be taken for present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aosp_plugin.framework.dra.slices import StoredSlice

Change: TypeAlias = Literal["deleted", "changed", "missing"]
"""What happened to a slice: a watch event showed its deletion, its content is another one, or a list lacked it."""


class Mirror:
    """The slices of the API server by name."""

    def __init__(self) -> None:
        self._slices: dict[str, StoredSlice] = {}
        self._versions: dict[str, int] = {}
        self._listed_version = 0
        self.highest_version = 0
        """The latest version of all states; a list that is requested now has this one or a later one."""
        self.complete = False
        """Whether a list was received: a slice that is not here does not exist."""

    @property
    def slices(self) -> Mapping[str, StoredSlice]:
        """The slices that exist."""
        return self._slices

    def stored(self, found: StoredSlice) -> bool:
        """Handle a slice in an event or an answer; return False if a later state is known."""
        if not self._is_news(found.name, found.version):
            return False
        self._slices[found.name] = found
        return True

    def deleted(self, name: str, version: int) -> bool:
        """Handle the event of a deletion; return False if the slice is known to be absent, or a later one exists."""
        if not self._is_news(name, version):
            return False
        return self._slices.pop(name, None) is not None

    def absent(self, seen: StoredSlice) -> bool:
        """Handle an answer that ``seen``, as it was requested, does not exist; return False if a later one is known."""
        if self._slices.get(seen.name) != seen:
            return False
        del self._slices[seen.name]
        return True

    def listed(self, found: Iterable[StoredSlice], version: int) -> Mapping[str, Change]:
        """Handle a list, complete at ``version``; return what it shows that was not known, by name."""
        before = dict(self._slices)
        later = {name: v for name, v in self._versions.items() if v > version}
        listed = {each.name: each for each in found}
        self._slices = {name: each for name, each in before.items() if name in later}
        self._slices |= {name: each for name, each in listed.items() if name not in later}
        self._versions = {name: each.version for name, each in self._slices.items()} | later
        self._listed_version = version
        self.highest_version = max(version, self.highest_version)
        self.complete = True
        changes: dict[str, Change] = {name: "missing" for name in before if name not in self._slices}
        return changes | {name: "changed" for name, each in self._slices.items() if before.get(name) != each}

    def rewind(self) -> None:
        """Handle that versions begin again lower, because the server's data was restored from a backup."""
        self._versions = dict.fromkeys(self._versions, 0)
        self._listed_version = self.highest_version = 0

    def _is_news(self, name: str, version: int) -> bool:
        """Return whether a state is later than the known one, and make it the known one.

        A name without a version of its own was absent at the time of the last list.
        """
        if version and version <= self._versions.get(name, self._listed_version):
            return False
        self._versions[name] = version
        self.highest_version = max(version, self.highest_version)
        return True
