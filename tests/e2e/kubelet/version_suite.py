"""The sets of items that ``--items`` selects: the core set, and what may differ between versions of the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.suite import CHAPTERS, CORE

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_WHOLE: Final = ("two-plugins", "numa", "no-cdi", "kubelet-without-cdi")
"""Chapters with all of their items."""
_CDI: Final = {"registers", "capacity", "file", "by_field", "by_annotation", "spec", "three_paths", "ends"}

NAMES: Final[dict[str, AbstractSet[str]]] = {
    "process": {
        *CORE["process"],
        *("init_containers", "finished", "removed", "kubelet_killed", "plugin_restarts", "both_restart", "plugin_away"),
        *("rejected_meanwhile", "kubelet_restarts_meanwhile", "plugin_back", "removed_meanwhile", "finished_stays"),
        "reboot",
    },
    "pod": CORE["pod"] - {"content", "programs", "modules", "commands"},
    "phones": CORE["phones"],
    "cdi": _CDI,
    "cdi-annotations": _CDI,
    **{chapter.name: {item.name for item in chapter.items} for chapter in CHAPTERS if chapter.name in _WHOLE},
}
"""The names of items by chapter. All scenarios are selected."""

SETS: Final = {"core": CORE, "versions": NAMES}
